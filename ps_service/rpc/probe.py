"""Probe: asks a running owner how it is."""

from __future__ import annotations

import grpc

from ps_wire.errors import UnavailableError
from ps_wire.v1.operations_pb2 import StatusReply, StatusRequest
from ps_wire.v1.owner_pb2_grpc import OwnerStub


def status(address: str, timeout_seconds: float = 5.0) -> StatusReply:
    """The status of the owner at an address.

    Raises:
        UnavailableError: Nobody answers there in time.
    """
    with grpc.insecure_channel(address) as channel:
        try:
            reply: StatusReply = OwnerStub(channel).Status(
                StatusRequest(), timeout=timeout_seconds, wait_for_ready=True
            )
        except grpc.RpcError as error:
            raise UnavailableError(f"no owner answers at {address} ({error.code().name})") from None
    return reply
