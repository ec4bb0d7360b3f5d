"""Requests to a running owner for `ps-service status`, `sessions` and `evict`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from ps_service.rpc.unary_metadata import ERROR_KEY
from ps_wire import errors
from ps_wire.errors import UnavailableError
from ps_wire.status import OwnerStatus
from ps_wire.v1.errors_pb2 import Error
from ps_wire.v1.operations_pb2 import (
    CheckpointReply,
    CheckpointRequest,
    EvictReply,
    EvictRequest,
    SessionsReply,
    SessionsRequest,
    StatusRequest,
)
from ps_wire.v1.owner_pb2_grpc import OwnerStub
from trainer_client.transport.channels import open_blocking_channel, reason


def status(address: str, timeout_seconds: float = 5.0, *, most: int = 0, events: int = 0) -> OwnerStatus:
    """The status of the owner at an address.

    Args:
        address: Host and port.
        timeout_seconds: How long to wait.
        most: Most entries of each list; 0: 1000.
        events: How many of the latest events it holds.

    Raises:
        UnavailableError: No owner answers in time.
    """
    request = StatusRequest(most=most, events=events)
    return OwnerStatus.from_message(_asked(address, lambda stub: stub.Status, request, timeout_seconds))


def sessions(address: str, timeout_seconds: float = 5.0) -> SessionsReply:
    """The sessions and open contexts of the owner at an address.

    Raises:
        UnavailableError: No owner answers in time.
    """
    reply: SessionsReply = _asked(address, lambda stub: stub.Sessions, SessionsRequest(), timeout_seconds)
    return reply


def evict(address: str, request: EvictRequest, timeout_seconds: float = 5.0) -> EvictReply:
    """Ends sessions or contexts of the owner at an address.

    Raises:
        UnavailableError: No owner answers there in time, or it is draining.
        UnknownNameError: There is no such session or context.
        InvalidArgumentError: The id is ambiguous or malformed.
    """
    reply: EvictReply = _asked(address, lambda stub: stub.Evict, request, timeout_seconds)
    return reply


def checkpoint(address: str, timeout_seconds: float) -> CheckpointReply:
    """Has the owner at an address write a checkpoint.

    Raises:
        UnavailableError: No owner answers there in time, or it is stopping.
        InvalidArgumentError: It has no data directory.
        InternalError: It cannot be written.
    """
    reply: CheckpointReply = _asked(address, lambda stub: stub.Checkpoint, CheckpointRequest(), timeout_seconds)
    return reply


def _asked(address: str, method: Callable[[OwnerStub], Any], request: Any, timeout_seconds: float) -> Any:
    with open_blocking_channel(address) as channel:
        try:
            return method(OwnerStub(channel))(request, timeout=timeout_seconds, wait_for_ready=False)
        except grpc.RpcError as error:
            for key, value in error.trailing_metadata() or ():
                if key == ERROR_KEY:
                    raise errors.from_message(Error.FromString(value)) from None
            late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            why = f"nothing came within {timeout_seconds:g} s" if late else reason(error.code(), error.details())
            raise UnavailableError(f"no owner answers at {address}: {why}") from None
