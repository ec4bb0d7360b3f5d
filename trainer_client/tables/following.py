"""Follows the rows of a table that move to other owners."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch

from ps_wire.errors import PermissionDeniedError, PsError, RowsMovedError
from ps_wire.tables.routing import Routing
from trainer_client.pending import DEFAULT, Joined, Pending, results

if TYPE_CHECKING:
    from trainer_client.handles.handles import RemoteObject

T = TypeVar("T")

MOST_REPEATS: Final = 20
"""How often a request is repeated because rows have moved meanwhile, before the program gets the error."""

_AGAIN_SECONDS: Final = 0.002
"""Seconds after which an owner is asked again that has closed a table for a moment."""


class Follower:
    """Has the handle of a table know which owner has which rows. `routing` gives what the handle knows, `shards` has
    the handles of owners by name, and `adopt` has the handle know another routing, whose owners it connects to.
    `elsewhere` gives what any owners have of a table of that name."""

    def __init__(
        self,
        routing: Callable[[], Routing],
        shards: Mapping[str, RemoteObject],
        adopt: Callable[[Routing], Awaitable[None]],
        elsewhere: Callable[[], Awaitable[Mapping[str, RemoteObject]]] | None = None,
    ) -> None:
        self.routing: Final = routing
        self._shards = shards
        self._adopt = adopt
        self._elsewhere = elsewhere
        self._lock = asyncio.Lock()

    @staticmethod
    def mark(owner: str, routing: Routing) -> tuple[int, ...]:
        """What a request to an owner says of the routing that it is sent by: nothing if no slot has moved."""
        return () if routing.moves is None else (routing.mark(owner),)

    async def follow(self, owner: str) -> Routing:
        """Asks an owner for its routing, once that has not closed the table, and takes from it what is newer. An owner
        whose routing is older is told the newer one. Returns the routing."""
        async with self._lock:
            # An owner has no event that all trainers could wait for.
            while (told := await self.call(owner, "routing_now")) is None:  # noqa: ASYNC110
                await asyncio.sleep(_AGAIN_SECONDS)
            theirs = Routing.from_plain(told)
            merged = self.routing().merged(theirs)
            if theirs.merged(merged) is not theirs:
                with suppress(PermissionDeniedError):  # others tell it
                    await self.call(owner, "agree", merged.to_plain())
            if merged is not self.routing():
                await self._adopt(merged)
            return merged

    async def follow_all(self) -> Routing:
        """Does so with all owners that have rows."""
        asked: set[str] = set()
        while left := [each for each in self.routing().owners if each not in asked]:
            for owner in left:
                await self.follow(owner)
            asked.update(left)
        return self.routing()

    async def everywhere(self, change: Callable[[], Awaitable[T]]) -> T:
        """Makes a change on all owners that have rows. It is made again if slots have moved meanwhile: their new owner
        may have got what belongs to the table before the change."""
        routing = await self.follow_all()
        for _ in range(MOST_REPEATS):
            made = await change()
            before, routing = routing, await self.follow_all()
            if routing is before:
                return made
        raise RowsMovedError("rows of the table have moved from owner to owner all the time: try again later")

    async def has_left(self, owner: str) -> bool:
        """Whether an owner has no rows any more, as the others say that can be reached."""
        for other in self.routing().owners:
            with suppress(PsError):
                if other != owner and self._shards[other].session.state == "connected":
                    await self.follow(other)
            if owner not in self.routing().owners:
                return True
        if self._elsewhere is None or self._shards[owner].session.state == "connected":
            return False
        # Rows may have moved on to owners of which the others have not heard.
        found = await self._elsewhere()
        for other, shard in found.items():
            with suppress(PsError):
                routing = Routing.from_plain((await shard.call("describe"))["routing"])
                if other in routing.owners and (merged := self.routing().merged(routing)) is not self.routing():
                    await self._adopt(merged)
        return owner not in self.routing().owners

    def call(self, owner: str, method: str, *args: Any, timeout: float | None = DEFAULT) -> Pending[Any]:
        """Calls a method of the rows of an owner, beside whatever pass there is, and without a seed of the client."""
        with torch.no_grad():
            return self._shards[owner].options(seed=0, timeout=timeout).call(method, *args)


class Everywhere(Joined[T]):
    """Requests to all owners of a table, whose result is made from theirs, by name. Owners that refuse because rows
    have moved are asked again, together with those that were not asked, and unless it `counts_once` with those that
    have other slots now than when they have answered."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        follower: Follower,
        ask: Callable[[Routing, str], Pending[Any]],
        read: Callable[[dict[str, Any]], T],
        counts_once: bool = False,
    ) -> None:
        routing = follower.routing()
        self._counts_once = counts_once
        self._owners: Sequence[str] = routing.owners
        self._routing = routing
        self._follower, self._ask, self._read = follower, ask, read
        asked = [ask(routing, owner) for owner in routing.owners]
        super().__init__(loop, asked, partial(_named, routing.owners, read), "a look-up")

    def _all_done(self, parts: tuple[Pending[Any], ...], read: Callable[[list[Any]], T]) -> None:
        moved = [part for part in parts if isinstance(part.error, RowsMovedError)]
        if not moved or self._loop is None:
            super()._all_done(parts, read)
            return
        for part in moved:
            if (failure := part.failure) is not None:
                failure.read()
        again = Pending.run(self._loop, self._repeated(parts))
        self._cancel = again.cancel
        again.on_done(lambda: self.resolve(again.result))

    async def _repeated(self, parts: Sequence[Pending[Any]]) -> T:
        there = [not isinstance(part.error, RowsMovedError) for part in parts]
        done = [owner for owner, is_there in zip(self._owners, there, strict=True) if is_there]
        kept = results(part for part, is_there in zip(parts, there, strict=True) if is_there)
        marks = {owner: self._routing.mark(owner) for owner in done}
        answers = dict(zip(done, kept, strict=True))
        for _ in range(MOST_REPEATS):
            routing = await self._follower.follow_all()
            # Rows that an owner has got or given away since are in the answers of two owners, or of none.
            now = {owner: routing.mark(owner) for owner in routing.owners}
            if not self._counts_once:
                answers = {owner: each for owner, each in answers.items() if marks[owner] == now.get(owner)}
            left = [owner for owner in routing.owners if owner not in answers]
            for owner, answer in [(owner, self._ask(routing, owner)) for owner in left]:
                try:
                    answers[owner], marks[owner] = await answer, now[owner]
                except RowsMovedError:
                    continue
            if routing is self._follower.routing() and answers.keys() >= now.keys():
                return self._read(answers)
        raise RowsMovedError("rows of the table have moved from owner to owner all the time, or owners do not agree")


def marks_of(routing: Routing) -> dict[str, int]:
    """What steps say of a routing to each owner."""
    return {owner: 0 if routing.moves is None else routing.mark(owner) for owner in routing.owners}


def _named(owners: Sequence[str], read: Callable[[dict[str, Any]], T], answers: list[Any]) -> T:
    return read(dict(zip(owners, answers, strict=True)))
