"""The metadata of unary requests, and the status and metadata of their errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import grpc

from ps_service.quotas.accounts import Account
from ps_wire.errors import InvalidArgumentError
from ps_wire.refs import new_trainer_id
from ps_wire.v1.errors_pb2 import Error, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ps_service.access.identities import Asker
    from ps_service.requests.operations import Operation

STATUS: Final[dict[int, grpc.StatusCode]] = {
    ErrorCode.ERROR_INVALID_ARGUMENT: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.ERROR_UNKNOWN_NAME: grpc.StatusCode.NOT_FOUND,
    ErrorCode.ERROR_UNKNOWN_METHOD: grpc.StatusCode.NOT_FOUND,
    ErrorCode.ERROR_NOT_ALLOWED: grpc.StatusCode.PERMISSION_DENIED,
    ErrorCode.ERROR_NAME_CONFLICT: grpc.StatusCode.ALREADY_EXISTS,
    ErrorCode.ERROR_STALE_HANDLE: grpc.StatusCode.NOT_FOUND,
    ErrorCode.ERROR_FOREIGN_HANDLE: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.ERROR_CONTEXT_ENDED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.ERROR_CONTEXT_LOST: grpc.StatusCode.ABORTED,
    ErrorCode.ERROR_REMOTE: grpc.StatusCode.UNKNOWN,
    ErrorCode.ERROR_NON_FINITE_GRADIENT: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.ERROR_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.ERROR_DEADLINE_EXCEEDED: grpc.StatusCode.DEADLINE_EXCEEDED,
    ErrorCode.ERROR_CANCELLED: grpc.StatusCode.CANCELLED,
    ErrorCode.ERROR_OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.ERROR_QUOTA: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.ERROR_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.ERROR_REPLACED: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.ERROR_ROWS_MOVED: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.ERROR_OBJECT_MOVED: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.ERROR_DRAINING: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.ERROR_STORAGE: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.ERROR_SESSION_LOST: grpc.StatusCode.ABORTED,
    ErrorCode.ERROR_INTERNAL: grpc.StatusCode.INTERNAL,
    ErrorCode.ERROR_UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    ErrorCode.ERROR_PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
}
"""The gRPC status of each error, for the unary methods."""

TRAINER_KEY: Final = "ps-trainer"
NUMBER_KEY: Final = "ps-number"
NAMESPACE_KEY: Final = "ps-namespace"
INCARNATION_KEY: Final = "ps-incarnation"
POSITION_KEY: Final = "ps-position"
ERROR_KEY: Final = "ps-error-bin"

_LONGEST_METADATA: Final = 1024
"""Most bytes of an error's message, which is sent twice. Its traceback may have twice as many; gRPC allows 8 KiB."""

_MOST_DIGITS: Final = 20
"""Most digits of a number of 64 bits."""


class Caller(NamedTuple):
    """The caller of a unary method: its id, a new one if it has given none; the number of its request, or 0; who it is,
    where it was asked for that; and the namespace that it has named, empty for the default one."""

    trainer: bytes
    named: bool
    number: int
    asker: Asker | None = None
    namespace: str = ""

    @property
    def account(self) -> Account:
        """What counts what it uses."""
        return Account("" if self.asker is None else self.asker.identity.name, self.namespace)


def caller_of(metadata: Mapping[str, str], operation: Operation) -> Caller:
    """The caller that a request's metadata names. Raises `InvalidArgumentError` if it is not valid, or is missing
    although the operation mutates."""
    text, number = metadata.get(TRAINER_KEY, ""), metadata.get(NUMBER_KEY, "0")
    if not text and not operation.mutates:
        return Caller(new_trainer_id(), TRAINER_KEY in metadata, 0)
    try:
        trainer = bytes.fromhex(text)
    except ValueError:
        trainer = b""
    if len(trainer) != 16 or not number.isdecimal() or len(number) > _MOST_DIGITS or int(number) >= 1 << 64:
        raise InvalidArgumentError(
            f"send the metadata {TRAINER_KEY} (32 hexadecimal digits of your choice, the same for all your calls) "
            f"and, to make repeated requests safe, {NUMBER_KEY} (1, 2, 3 …)"
        )
    return Caller(trainer, True, int(number))


def fit_for_metadata(error: Error) -> Error:
    """An error, shortened to a few thousand bytes, because gRPC refuses replies whose metadata is longer."""
    message = error.message.encode()[:_LONGEST_METADATA].decode(errors="ignore")
    trace = error.traceback.encode()[-2 * _LONGEST_METADATA :].decode(errors="ignore")
    return Error(code=error.code, message=message, remote_type=error.remote_type[:200], traceback=trace)
