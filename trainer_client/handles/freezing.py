"""Sets requires_grad of parameters on owners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import SetRequiresGradRequest

if TYPE_CHECKING:
    from ps_wire.refs import Ref
    from trainer_client.pending import Pending
    from trainer_client.session.session import Session

T = TypeVar("T")


class Freezable(Protocol):
    """A handle of a parameter or module."""

    @property
    def session(self) -> Session:
        """The session with its owner."""

    @property
    def ref(self) -> Ref:
        """The reference to the parameter or module."""

    def note_requires_grad(self, requires_grad: bool) -> None:
        """Called when the owner has set it."""


def set_requires_grad(handles: Sequence[Freezable], requires_grad: bool, result: T) -> Pending[T]:
    """Freezes or unfreezes parameters of one owner: all of them, or none if it raises.

    Returns:
        `result`, once the owner has done it.
    """
    targets = [handle.ref.to_message() for handle in handles]
    request = Request(set_requires_grad=SetRequiresGradRequest(targets=targets, requires_grad=requires_grad))

    def finish(*_: object) -> T:
        for handle in handles:
            handle.note_requires_grad(requires_grad)
        return result

    return handles[0].session.submit(request, None, finish)


async def set_everywhere(handles: Sequence[Freezable], requires_grad: bool) -> None:
    """Freezes or unfreezes parameters of several owners: on each owner all of them or none."""
    by_session: dict[Session, list[Freezable]] = {}
    for handle in handles:
        by_session.setdefault(handle.session, []).append(handle)
    pending = [set_requires_grad(some, requires_grad, None) for some in by_session.values()]
    for each in pending:
        await each
