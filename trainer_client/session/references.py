"""Takes references to objects of other owners that are in an answer."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ps_wire import errors
from ps_wire.errors import ForeignHandleError, InternalError, PsError
from ps_wire.refs import Ref
from ps_wire.v1.frames_pb2 import Reply

if TYPE_CHECKING:
    from ps_wire.codec.payload import Buffer

Finish = Callable[[int, Reply, "Buffer | None", Sequence[object]], None]
"""Delivers an answer: the number of the request, its reply, the payload, and objects to keep alive with the result."""


class Others(Protocol):
    """The other owners of a client, whose objects an answer may have handles to."""

    async def take_hold(self, refs: Iterable[Ref]) -> Sequence[object]:
        """Takes a reference to each object, held as long as the returned objects live. Raises `PsError`."""

    def held(self, ref: Ref) -> Any:
        """A handle to an object that `take_hold` has taken a reference to."""

    async def reach(self, owner: str) -> Any:
        """The session with an owner. Raises `PsError`."""

    async def all_there(self) -> Sequence[Any]:
        """The sessions with all owners that are there; in a group, also with those that have joined since."""


class Borrowing:
    """Delivers answers with handles of other owners' objects, once references to those are taken."""

    def __init__(self, others: Others | None, finish: Finish) -> None:
        self._others = others
        self._finish = finish
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def begin(self, number: int, reply: Reply, payload: Buffer | None) -> None:
        """Begins to take the references of an answer. The same answer is ignored if it arrives again meanwhile."""
        if number not in self._tasks:
            # In an empty context: the context variables of the present task do not apply.
            task = asyncio.get_running_loop().create_task(
                self._borrow(number, reply, payload), context=contextvars.Context()
            )
            self._tasks[number] = task
            task.add_done_callback(lambda _: self._tasks.pop(number))

    def stop(self) -> None:
        """Cancels the deliveries in progress."""
        for task in self._tasks.values():
            task.cancel()

    def held(self, ref: Ref) -> Any:
        """The handle of an object of which hold was taken; `ForeignHandleError` if the client knows no other owners."""
        if self._others is None:
            raise ForeignHandleError(f"{ref} belongs to another owner, and this session is not connected to any other")
        return self._others.held(ref)

    async def _borrow(self, number: int, reply: Reply, payload: Buffer | None) -> None:
        try:
            refs = map(Ref.from_message, reply.borrowed)
            held = () if self._others is None else await self._others.take_hold(refs)
        except Exception as error:
            if not isinstance(error, PsError):
                error = InternalError(f"{error!r} while references to objects of other owners were taken")
            failed = Reply(error=errors.to_message(error), granted=reply.granted, position=reply.position)
            self._finish(number, failed, None, ())
        else:
            self._finish(number, reply, payload, held)
