"""Follows objects that have moved to other owners."""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from ps_wire import errors
from ps_wire.codec.messages import messages_in
from ps_wire.errors import (
    ClosedError,
    ObjectMovedError,
    PsError,
    UnavailableError,
    UnknownNameError,
)
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import MOVE_ACCEPT, MoveRequest, ObjectInfo
from ps_wire.v1.values_pb2 import Handle

if TYPE_CHECKING:
    from ps_wire.v1.errors_pb2 import Error
    from trainer_client.session.in_flight import InFlightRequest
    from trainer_client.session.references import Others
    from trainer_client.session.requests import Requests

_AGAIN_SECONDS: Final = 0.002
"""Seconds after which an owner is asked again for an object that is about to move."""


class Redirecting(Protocol):
    """A session with an owner; see `Session`."""

    owner: str
    moves: Moves
    requests: Requests

    def submit(self, message: Request, payload: None, read: Any) -> Any:
        """Sends a request."""


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
        # With the request that each is to send again.
        self._tasks: dict[asyncio.Task[None], InFlightRequest[Any]] = {}

    def redirect(self, in_flight: InFlightRequest[Any], error: Error) -> bool:
        """Sends a refused request again where its object is, and those that need its result. False for requests that
        move objects."""
        moved = errors.from_message(error)
        if not isinstance(moved, ObjectMovedError) or in_flight.operation == "move":
            return False
        self._put_aside(in_flight)
        task = asyncio.get_running_loop().create_task(self._again(in_flight, moved), context=contextvars.Context())
        self._tasks[task] = in_flight
        task.add_done_callback(self._ended)
        return True

    def _put_aside(self, first: InFlightRequest[Any]) -> None:
        """Takes a request that is to be sent again out of the window, and those that follow it, which the owner fails.
        They have no numbers then, so those that come to follow them wait. Each is in one chain at a time. One that
        another request which it follows has taken to another owner waits there, and is sent when all of them are."""
        requests = self._session.requests
        window, chain = requests.window, {first: first}
        left = [first]
        for each in left:
            here = [one for one in each.followers if not one.settled and one.session.owner == self._session.owner]
            new = [one for one in here if one not in chain]
            chain.update(dict.fromkeys(new, first))
            left.extend(new)
        for kept in (window.waiting, window.large):
            for each in [one for one in kept if one in chain]:
                kept.remove(each)
        for each in left:
            if each.number and each is not first:
                requests.forget(each)
            each.number = 0
        requests.flush()  # those of them that were only collected are blocked now
        window.blocked[:] = [each for each in window.blocked if each not in chain]
        requests.aside.update(chain)

    def _chain(self, first: InFlightRequest[Any]) -> list[InFlightRequest[Any]]:
        """Those which were put aside with a request and wait still, in the order in which they were made; not any more
        if a request that it follows is to be sent again, too, and has them in its chain."""
        aside = self._session.requests.aside
        chain = [each for each, head in aside.items() if head is first]
        for each in chain:
            del aside[each]
        return sorted((each for each in chain if not each.settled), key=lambda each: each.place)

    def _fail(self, first: InFlightRequest[Any], error: PsError) -> None:
        for each in self._chain(first)[:1]:
            self._session.requests.fail(each, error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if (first := self._tasks.pop(task, None)) is not None and task.cancelled():
            # Sessions with other owners are closed before this one.
            self._fail(first, ClosedError("this client is closed"))

    async def _again(self, first: InFlightRequest[Any], moved: ObjectMovedError) -> None:
        try:
            session = await self.follow(moved)
        except PsError as error:
            self._fail(first, error)
            return
        if self._session.requests.aside.get(first) is first and not first.settled:
            self._put_aside(first)  # with those that follow it since
        chain = self._chain(first)
        if session is not self._session and not self._may_go(chain, session):
            for each in chain[:1]:
                self._session.requests.fail(each, moved)
            return
        for each in chain:
            if not each.settled:  # it may have been cancelled meanwhile
                request = each.frame.request
                request.ClearField("confirmed")
                request.ClearField("after")
                for handle in self._handles_in(request):
                    handle.owner = self.objects[handle.object_id].owner
                each.move_to(session)
                session.requests.begin(each)

    def _handles_in(self, request: Request) -> list[Handle]:
        """The handles of objects that have moved away from this owner."""
        own = [each for each in messages_in(request, Handle) if each.owner == self._session.owner]
        return [each for each in own if each.object_id in self.objects]

    def _may_go(self, chain: list[InFlightRequest[Any]], session: Any) -> bool:
        """Whether requests need nothing of this owner."""
        calls = [each.frame.request.call for each in chain if each.operation == "call"]
        results = {each.result_id for each in calls}
        if not all(results.issuperset(each.results) for each in calls):
            return False
        handles = [each for one in chain for each in messages_in(one.frame.request, Handle)]
        there = [self.objects.get(each.object_id) for each in handles if each.owner == self._session.owner]
        # Another object of this owner among the arguments is that of another owner then, as it may be.
        return len(chain) == 1 or all(each is session for each in there)

    async def follow(self, moved: ObjectMovedError) -> Any:
        """The session with the owner to ask, which has accepted what has moved to it, maybe by way of others. Raises
        `PsError`."""
        if not moved.owner:
            await asyncio.sleep(_AGAIN_SECONDS)
            return self._session
        async with self._lock:
            known = self.objects.get(moved.object_id)
            if known is not None and known.owner == moved.owner:
                return known
            if self._others is None:
                raise moved
            while True:
                try:
                    session = await self._others.reach(moved.owner)
                    await self._accepted(session, moved)
                    return session
                except ObjectMovedError as further:
                    moved = further  # it has left that owner, too
                except (UnavailableError, UnknownNameError) as gone:
                    return await self._look_everywhere(self._others, moved, gone)

    async def _look_everywhere(self, others: Others, moved: ObjectMovedError, gone: PsError) -> Any:
        """The session with the owner that has an object by now, when the one that it has moved to is not there."""
        for session in await others.all_there() if moved.object_id else ():
            if session is not self._session and session.owner != moved.owner:
                with suppress(PsError):
                    await self._accepted(session, ObjectMovedError("", session.owner, "", moved.object_id))
                    return session
        raise UnavailableError(
            f"{moved}, which cannot be asked: {gone}. If it has moved on from there, connect with the address of the "
            "owner that has it now, or through the directory of their group, and ask for it by its name"
        ) from gone

    async def _accepted(self, session: Redirecting, moved: ObjectMovedError) -> None:
        if not (moved.move or moved.object_id):
            return
        action = MoveRequest(action=MOVE_ACCEPT, move=moved.move, object_id=moved.object_id)

        def objects(reply: Any, _: Any) -> list[ObjectInfo]:
            return list(reply.move.objects)

        for info in await session.submit(Request(move=action), None, objects):
            session.moves.objects.pop(info.handle.object_id, None)
            if session is not self._session:  # else it has come back
                self.objects[info.handle.object_id] = session
        for each in list(self.followers):
            each.objects_moved()

    def stop(self, error: PsError) -> None:
        """Ends what was begun: requests that were to be sent again fail with the error."""
        tasks, self._tasks = self._tasks, {}
        for task, first in tasks.items():
            if not task.done():
                task.cancel()
                self._fail(first, error)
