"""Borrowing: handles of other owners' objects in an answer, of which hold is taken before the answer is given."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from ps_wire import errors
from ps_wire.errors import ForeignHandleError, InternalError, PsError
from ps_wire.refs import Ref
from ps_wire.v1.frames_pb2 import Reply

if TYPE_CHECKING:
    from ps_wire.codec.payload import Buffer
    from trainer_client.handles.references import RRef

Finish = Callable[[int, Reply, "Buffer | None", Sequence[object]], None]
"""Takes the number of a request, its reply, the payload, and what has to be kept with the result."""


class Others(Protocol):
    """The other owners of a client, of whose objects an answer may hand out handles."""

    async def take_hold(self, refs: Iterable[Ref]) -> Sequence[object]:
        """Gets a reference to each of some objects; they last as long as what is returned.

        Raises:
            PsError: An owner cannot be found or reached, or the object is gone.
        """

    def held(self, ref: Ref) -> RRef:
        """The handle of an object of which hold was taken."""


class Borrowing:
    """Takes hold of what the answers of one owner hand out of others; until an answer is confirmed, its sender does.

    Args:
        others: The client's other owners, if it knows any.
        finish: Gives the answer to a request.
    """

    def __init__(self, others: Others | None, finish: Finish) -> None:
        self._others = others
        self._finish = finish
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def begin(self, number: int, reply: Reply, payload: Buffer | None) -> None:
        """Gives an answer later. One that comes again meanwhile is passed over."""
        if number not in self._tasks:
            # In no context: what runs here at this moment has nothing to do with it.
            task = asyncio.get_running_loop().create_task(
                self._borrow(number, reply, payload), context=contextvars.Context()
            )
            self._tasks[number] = task
            task.add_done_callback(lambda _: self._tasks.pop(number))

    def stop(self) -> None:
        """No more answers are given."""
        for task in self._tasks.values():
            task.cancel()

    def held(self, ref: Ref) -> RRef:
        """The handle of an object of which hold was taken.

        Raises:
            ForeignHandleError: The client knows no other owners.
        """
        if self._others is None:
            raise ForeignHandleError(f"{ref} belongs to another owner, and this session knows no others")
        return self._others.held(ref)

    async def _borrow(self, number: int, reply: Reply, payload: Buffer | None) -> None:
        try:
            if self._others is None:
                held: Sequence[object] = ()
            else:
                held = await self._others.take_hold(Ref.from_message(handle) for handle in reply.borrowed)
        except Exception as error:
            told = error if isinstance(error, PsError) else InternalError(f"{error!r} while handles were taken hold of")
            self._finish(number, Reply(error=errors.to_message(told)), None, ())
        else:
            self._finish(number, reply, payload, held)
