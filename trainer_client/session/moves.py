"""Follows objects that have moved to other owners."""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from ps_wire import errors
from ps_wire.codec.messages import messages_in
from ps_wire.errors import ObjectMovedError, PsError
from ps_wire.runtime.failures import Failure
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import MOVE_ACCEPT, MoveRequest, ObjectInfo
from ps_wire.v1.values_pb2 import Handle

if TYPE_CHECKING:
    from ps_wire.v1.errors_pb2 import Error
    from trainer_client.session.in_flight import InFlightRequest
    from trainer_client.session.references import Others

_AGAIN_SECONDS: Final = 0.002
"""Seconds after which an owner is asked again for an object that is about to move."""


class Redirecting(Protocol):
    """A session with an owner; see `Session`."""

    owner: str
    moves: Moves

    def submit(self, message: Request, payload: None, read: Any) -> Any:
        """Sends a request."""

    def resend(self, in_flight: InFlightRequest[Any]) -> None:
        """Sends a request that was sent before, maybe to another owner."""


class Follower(Protocol):
    """What has to know at once that an object has moved."""

    def objects_moved(self) -> None:
        """Objects have moved."""


class Moves:
    """The objects that have moved away from the owner of a session, by id, as far as the trainer knows. A request that
    the owner refuses because of that is sent again, to the other owner. Used on the event loop."""

    def __init__(self, session: Redirecting, others: Others | None) -> None:
        # Sessions, by id.
        self.objects: dict[str, Any] = {}
        self.followers: weakref.WeakSet[Follower] = weakref.WeakSet()
        self._session = session
        self._others = others
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def redirect(self, in_flight: InFlightRequest[Any], error: Error) -> bool:
        """Sends a refused request again where its object is. False if it cannot be sent there as it is: it needs a
        result that stays here, or another one needs its result."""
        moved = errors.from_message(error)
        if not isinstance(moved, ObjectMovedError) or in_flight.operation == "move":
            return False
        if in_flight.follows or in_flight.followers or in_flight.staying is not None:
            # The next request goes there.
            self._begin(self._found(moved))
            return False
        self._begin(self._again(in_flight, moved))
        return True

    def _begin(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _found(self, moved: ObjectMovedError) -> None:
        with suppress(PsError):  # who asks next gets the error
            await self.follow(moved)

    async def _again(self, in_flight: InFlightRequest[Any], moved: ObjectMovedError) -> None:
        try:
            session = await self.follow(moved)
        except PsError as error:
            in_flight.fail(Failure(error))
            return
        if in_flight.settled:
            return  # it was cancelled meanwhile
        self._readdress(in_flight.frame.request)
        in_flight.move_to(session)
        session.resend(in_flight)

    def _readdress(self, request: Request) -> None:
        for handle in messages_in(request, Handle):
            to = self.objects.get(handle.object_id)
            if handle.owner == self._session.owner and to is not None:
                handle.owner = to.owner

    async def follow(self, moved: ObjectMovedError) -> Any:
        """The session with the owner to ask, which has accepted what has moved to it. Raises `PsError`."""
        if not moved.owner:
            await asyncio.sleep(_AGAIN_SECONDS)
            return self._session
        async with self._lock:
            known = self.objects.get(moved.object_id)
            if known is not None and known.owner == moved.owner:
                return known
            if self._others is None:
                raise moved
            session = await self._others.reach(moved.owner)
            await self._accepted(session, moved)
            return session

    async def _accepted(self, session: Redirecting, moved: ObjectMovedError) -> None:
        if not (moved.move or moved.object_id):
            return
        action = MoveRequest(action=MOVE_ACCEPT, move=moved.move, object_id=moved.object_id)

        def objects(reply: Any, _: Any) -> list[ObjectInfo]:
            return list(reply.move.objects)

        for info in await session.submit(Request(move=action), None, objects):
            session.moves.objects.pop(info.handle.object_id, None)
            self.objects[info.handle.object_id] = session
        for each in list(self.followers):
            each.objects_moved()

    def stop(self) -> None:
        """Ends what was begun."""
        for task in self._tasks:
            task.cancel()
