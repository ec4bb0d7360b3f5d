"""Results of calls on their way, which may stay on the owner when only later calls need them."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch

from ps_wire.errors import PsError
from ps_wire.refs import Ref, new_object_id
from ps_wire.runtime.scopes import LEAST_SECONDS_LEFT
from trainer_client.handles.references import Reference, RRef, fetch_in
from trainer_client.pending import Pending, raiser
from trainer_client.session.in_flight import InFlightRequest
from trainer_client.session.watched import Watched

if TYPE_CHECKING:
    from ps_wire.runtime.failures import Origin
    from ps_wire.v1.frames_pb2 import Reply
    from trainer_client.graph.recorder import RecordingPass
    from trainer_client.session.session import Session
    from trainer_client.session.watched import Watch


class Staying:
    """The result of a call that stays on the owner.

    Args:
        rref: Its handle.

    Attributes:
        rref: Its handle, without a reference until the call is answered.
        fetching: Its value on the way, once a caller waits for that.
    """

    __slots__ = ("fetching", "rref")

    def __init__(self, rref: RRef) -> None:
        self.rref = rref
        self.fetching: Pending[Any] | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the owner has lost it with the session."""
        reference = self.rref._reference
        return reference is not None and not reference.counts


class PendingCall(InFlightRequest[Any]):
    """A call that is sent with others at the end of the turn of the event loop, or when a task waits for its result.

    If another call to the same owner takes its result before, and nothing waits for the result, it stays on the owner
    (promise pipelining). It is fetched if something waits for it later.
    """

    __slots__ = ()

    _session: Session

    collects = True
    origin: Origin
    staying: Staying | None

    def stay(self, session: Session, context: RecordingPass | None) -> RRef | None:
        """A handle of the result if that stays on the owner, so that a call there can take its value.

        Args:
            session: The session of that call.
            context: The context of that call.

        Returns:
            None if the value has to come here first.
        """
        own, recorded = self.origin.context, self.origin.recorded
        if session is not self._session or (context is not None and own not in (None, context)):
            return None
        if self.staying is not None:
            # A value that was fetched may have been changed here.
            return None if self.settled or self.staying.is_lost else self.staying.rref
        request = self.frame.request.call
        if not (self.collected and session.is_here) or request.keep:
            return None
        with self._mutex:
            if self._wakers or self._outcome is not None:
                return None
            rref = RRef(session, Ref(session.owner, new_object_id()), None)
            self.staying = Staying(rref)
        request.result_id = rref.ref.object_id
        if recorded is not None:
            rref.mark(recorded.context, recorded.receive((), (), 1)[0])
        return rref

    @property
    def title(self) -> str:
        return self.origin.title

    @property
    def subject(self) -> str:
        return f"{super().subject} on owner {self._session.owner!r}"

    @property
    def reason(self) -> str:
        return "whose result is an argument of this call"

    def stayed(self, reply: Reply) -> None:
        super().stayed(reply)
        if self.staying is not None:
            # The handle exists already, and gives the reference back that the answer grants.
            rref = self.staying.rref
            rref._reference = Reference(self._session, rref.ref.object_id)

    def _wanted(self) -> None:
        staying = self.staying
        if staying is None:
            return
        with self._mutex:
            if staying.fetching is not None or self._outcome is not None:
                return
            staying.fetching = Pending(None)
        try:
            fetching = self._fetch(staying.rref)
        except PsError as error:
            self.resolve(raiser(error))
        else:
            staying.fetching = fetching
            fetching.on_done(lambda: self.resolve(fetching.result))

    def _fetch(self, rref: RRef) -> Pending[Any]:
        context = self.origin.context
        left = self.timeout
        if left is not None and self.deadline < math.inf:
            left = max(self.deadline - time.monotonic(), LEAST_SECONDS_LEFT)
        with torch.enable_grad():  # grad mode counted when the call was made
            return fetch_in(
                None if context is None or context.ended else context, rref, left, () if self.answered else (self,)
            )

    def _hurry(self) -> None:
        if self.collected:
            self._session.hurry()

    def _when_cancelled(self) -> None:
        super()._when_cancelled()
        if self.staying is not None and self.staying.fetching is not None:
            self.staying.fetching.cancel()


class WatchedCall(Watched, PendingCall):
    """A call that is watched."""

    __slots__ = ("watch",)

    @classmethod
    def of(cls, watch: Watch, *args: Any) -> PendingCall:
        """A call that is watched. The other arguments as for `PendingCall`."""
        made = cls(*args)
        made.watch = watch
        return made
