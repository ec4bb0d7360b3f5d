"""The owners that parts of an optimizer have left for others, which may have lost passes before that."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ps_wire.errors import ContextLostError, DeadlineExceededError, SessionLostError, UnavailableError
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import NormRequest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from trainer_client.contexts.closing import Part
    from trainer_client.contexts.context import Context
    from trainer_client.pending import Pending
    from trainer_client.session.session import Session


_MOST: Final = 64
"""The most sessions of which is remembered that parts have left their owners."""


class LeftOwners:
    """The sessions with owners that parts have left.

    Nothing leaves an owner while a pass that is open there uses it. One that was killed has lost its passes, so what
    they have used may leave then, and no part of the optimizer is there any more that says so when it is asked for a
    step. The owner that has the part now takes the pass for one without gradients. So an owner that a part has left is
    asked once more, for each pass that had begun before. An optimizer that is made while a pass is open does not know
    what has left owners before, so it asks all that the pass has called.
    """

    def __init__(self) -> None:
        # With the number of the last pass that had begun when that was known. Replaced, never changed: steps read it
        # in other threads.
        self._left: Mapping[Session, int] = {}
        # The sessions of the parts, and the last pass that had begun when there were none yet.
        self._there: set[Session] = set()
        self._made = 0
        # Of no later pass owners have to be asked.
        self.last_pass = 0

    def change(self, before: Iterable[Part], now: Iterable[Part]) -> None:
        """The parts are on other owners than before."""
        there, was_there = {each.session for each in now}, self._there
        self._there = there
        if there and not was_there:
            self._made = max(each.settings.last_pass() for each in there)
        gone = {each.session: each.session.settings.last_pass() for each in before}
        left = {session: last for session, last in {**self._left, **gone}.items() if session not in there}
        self._left = dict(list(left.items())[-_MOST:])
        self.last_pass = max(self._made, *self._left.values(), 0)

    def __contains__(self, context: Context) -> bool:
        """Whether owners have to be asked for a pass."""
        return context.id.number <= self.last_pass and bool(self._asked_for(context)[0])

    async def confirm(self, context: Context) -> None:
        """Asks the owners for a pass. Raises `ContextLostError` if one has lost it, or was used in it and cannot say
        whether it has, and `ContextEndedError` if the pass has ended."""
        asked, away = self._ask(context)
        for session, answer in asked:
            with _unknown(context, session):
                _check(context, away, await answer)

    def confirm_here(self, context: Context) -> None:
        """The same in this thread, which must not be that of the client's event loop."""
        asked, away = self._ask(context)
        for session, answer in asked:
            with _unknown(context, session):
                _check(context, away, answer.wait())

    def _ask(self, context: Context) -> tuple[list[tuple[Session, Pending[list[str]]]], set[str]]:
        """The questions to owners, whose answers name those that each has called in the pass; and `_asked_for`."""
        if context not in self:
            return [], set()
        sessions, away = self._asked_for(context)
        request = Request(norm=NormRequest(context=context.message, norm_type=1.0))  # of no parameter
        return [(each, each.submit(request, None, lambda reply, _: list(reply.norm.others))) for each in sessions], away

    def _asked_for(self, context: Context) -> tuple[list[Session], set[str]]:
        """The sessions with the owners to ask, and the names of those that cannot be asked. These may be gone for good,
        and stop a pass only if hosted code has used them, which the owners know that the pass has called."""
        called = context.sessions
        before = [session for session, last in self._left.items() if context.id.number <= last]
        asked = [each for each in before if each in called or each.state == "connected"]
        away = {each.owner for each in before if each not in asked}
        if away:
            asked += [each for each in called if each not in asked]
        elif context.id.number <= self._made:
            asked += [each for each in called if each not in self._there and each not in asked]
        return asked, away


def _check(context: Context, away: Collection[str], called: Sequence[str]) -> None:
    """Raises `ContextLostError` if one of the owners that were called is away."""
    for owner in away:
        if owner in called:
            raise _lost(context, owner)


@contextmanager
def _unknown(context: Context, session: Session) -> Iterator[None]:
    """What follows from an owner that does not answer."""
    try:
        yield
    except (DeadlineExceededError, SessionLostError, UnavailableError) as error:
        if session in context.sessions:
            raise _lost(context, session.owner) from error


def _lost(context: Context, owner: str) -> ContextLostError:
    return ContextLostError(
        f"what context {context.id} may have used on owner {owner!r} is on another owner now, and whether the pass was "
        "lost before is not known: run forward again"
    )
