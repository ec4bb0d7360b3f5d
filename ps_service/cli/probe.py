"""Requests to running owners, for `ps-service status`, `sessions`, `evict` and `checkpoint`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc

from ps_service.rpc.unary_metadata import ERROR_KEY
from ps_wire import errors
from ps_wire.errors import UnavailableError
from ps_wire.status import OwnerStatus
from ps_wire.tokens import metadata_of_variables
from ps_wire.v1.errors_pb2 import Error
from ps_wire.v1.operations_pb2 import StatusRequest
from ps_wire.v1.owner_pb2_grpc import OwnerStub
from trainer_client.transport.channels import (
    checked_address,
    is_refusal,
    open_blocking_channel,
    refusal,
    unanswered,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from ps_wire.status.parts import MemberStatus
    from ps_wire.tls import TLS

_AT_ONCE: Final = 32
"""Owners that are asked at the same time."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A member of the group that does not answer at the address that the directory has."""

    name: str
    address: str
    why: str


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The status of the owners of a group that have answered, in the order of their numbers; and who has not."""

    owners: tuple[OwnerStatus, ...]
    missing: tuple[Missing, ...] = ()

    def as_plain(self) -> dict[str, Any]:
        """The content as what JSON has."""
        owners = [each.as_plain() for each in self.owners]
        return {"owners": owners, "missing": [asdict(each) for each in self.missing]}


def status(
    address: str, timeout_seconds: float = 5.0, tls: TLS | None = None, *, most: int = 0, events: int = 0
) -> OwnerStatus:
    """The status of the owner at an address. Raises `UnavailableError` if none answers in time.

    It has at most `most` entries of each list (0: 1000), and so many of the latest events.
    """
    return OwnerStatus.from_message(ask(address, StatusRequest(most=most, events=events), timeout_seconds, tls))


def group(
    address: str, timeout_seconds: float = 5.0, tls: TLS | None = None, *, most: int = 0, events: int = 0
) -> GroupStatus:
    """The status of all owners of the group of an owner, or its own. Raises `UnavailableError` as `status` does."""
    first = status(address, timeout_seconds, tls, most=most, events=events)
    members = first.members
    if not members and first.directory:
        members = status(first.directory, timeout_seconds, tls).members
    if not members:
        return GroupStatus((first,))

    def one(member: MemberStatus) -> OwnerStatus | Missing:
        if member.name == first.owner:
            return first
        try:
            return status(member.address, timeout_seconds, tls, most=most, events=events)
        except UnavailableError as error:
            return Missing(member.name, member.address, str(error))

    with ThreadPoolExecutor(min(_AT_ONCE, len(members))) as pool:
        found = list(pool.map(one, members))
    missing = tuple(each for each in found if isinstance(each, Missing))
    return GroupStatus(tuple(each for each in found if not isinstance(each, Missing)), missing)


def ask(address: str, request: Message, timeout_seconds: float, tls: TLS | None = None) -> Any:
    """Asks the owner at an address by a unary method. Raises the error that it answers with, `UnavailableError`, or
    `InvalidArgumentError` if this is no address: gRPC takes others, with port 443."""
    method = type(request).__name__.removesuffix("Request")
    with open_blocking_channel(checked_address(address, may_be_name=False), tls) as channel:
        try:
            ask = getattr(OwnerStub(channel), method)
            return ask(request, timeout=timeout_seconds, wait_for_ready=False, metadata=metadata_of_variables())
        except grpc.RpcError as error:
            for key, value in error.trailing_metadata() or ():
                if key == ERROR_KEY:
                    raise errors.from_message(Error.FromString(value)) from None
            if is_refusal(error.code()):
                raise refusal(error.code(), error.details()) from None
            why = unanswered(error, timeout_seconds)
            raise UnavailableError(f"no owner answers at {address}: {why}") from None
