"""The membership of this trainer in a communicator, which ends when the program has left or forgotten it."""

from __future__ import annotations

import itertools
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ps_wire.runtime import forks
from ps_wire.runtime.nothing import nothing
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import LeaveCommunicatorRequest
from trainer_client.pending import Pending

if TYPE_CHECKING:
    from trainer_client.session.session import Session

_NUMBERS: Final = itertools.count(1)
"""Numbers of the memberships of this process."""


class Membership:
    """A membership. If it is garbage, nobody will call its collectives any more, and the others must hear of that.

    A program may lose it without a fault of its own: a task is cancelled when the answer to its joining has come.

    Args:
        session: The session with the owner.

    Attributes:
        session: As the argument.
        number: By which it is named there.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.number = next(_NUMBERS)
        self._forgotten = weakref.finalize(self, _forget, session, self.number)
        self._forgotten.atexit = False

    def leave(self, why: str = "") -> Pending[None]:
        """Ends it.

        Args:
            why: The error because of which this trainer leaves, for the other members; empty if there is none.

        Returns:
            Done when the owner knows. Cancelling it ends only the wait: the others must hear of it in any case.
        """
        self._forgotten.detach()
        request = _leave(self.session, self.number, why)
        done: Pending[None] = Pending(self.session.loop)
        request.on_done(lambda: done.resolve(request.result))
        return done


def _forget(session: Session, number: int) -> None:
    """May be called by the garbage collector, in any thread."""
    if not forks.is_foreign(session.loop):
        # The loop may be closed; then the session has ended, and all its memberships with it.
        with suppress(RuntimeError):
            session.loop.call_soon_threadsafe(_leave, session, number, "its program has dropped the communicator")


def _leave(session: Session, number: int, why: str) -> Pending[None]:
    request = LeaveCommunicatorRequest(member=number, why=why)
    return session.submit(Request(leave_communicator=request), None, nothing)
