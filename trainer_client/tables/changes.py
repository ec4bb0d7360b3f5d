"""Follows the rows of a table: all of them once, and from then on what changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_wire.compression.registry import check_suitable_for_rows, decode
from ps_wire.errors import ClosedError, InvalidArgumentError, PsError, RowsMovedError
from ps_wire.numbers import check_seconds
from trainer_client.pending import Pending

if TYPE_CHECKING:
    from ps_wire.compression.codec import Codec
    from trainer_client.tables.contents import TableContents

Version = Mapping[str, tuple[int, int]]
"""By owner a version of its rows, as `RowsVersion`: plain values, which JSON has, too (as lists)."""

NO_IDS: Final = torch.empty(0, dtype=torch.int64, device="cpu")


@dataclass(frozen=True, slots=True)
class Change:
    """What has changed in a table, each id once, as it is now.

    Apply it in this order: forget all rows if it `resets`, forget those of `removed`, put those of `ids`.

    Attributes:
        version: What the table is once this is applied, with all changes before: its rows are exactly those that each
            owner had at its version. None in the middle of changes that come in pieces. Later, `changes(since=version)`
            goes on from there.
        ids: int64 [n].
        values: Their rows, [n, dim].
        removed: Ids of rows that have gone, int64 [m]. There may be some that had none before.
        resets: Whether all rows come anew from here on: at the beginning, and when an owner does not know any more what
            has changed since, because it was killed, rows have moved, or too much has changed.
    """

    version: Version | None
    ids: torch.Tensor
    values: torch.Tensor
    removed: torch.Tensor
    resets: bool = False


_LOOKS: Final = 2
"""After so many looks at what has changed, each of which leaves more behind, owners keep it as it is for one look."""


NOTED_SECONDS: Final = 60.0
"""While one owner is read, others that were not asked for so long are asked for their versions. Owners note nothing
more that nobody has asked for long."""


_FIRST_PAUSE: Final = 0.05
_DOUBLINGS: Final = 6


async def pause(refusals: int) -> None:
    """Waits before owners are asked again of which one has refused because rows have moved: not after the first time,
    and then longer each time. One that was killed may not know yet what has moved to it, and only an admin tells it."""
    if refusals > 1:
        await asyncio.sleep(_FIRST_PAUSE * 2 ** min(refusals - 2, _DOUBLINGS))


class _TooOldError(Exception):
    """An owner does not know what has changed since a version."""


class Following:
    """Gives the changes of a table, from a version on. Arguments are those of `Table.changes`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        table: TableContents,
        since: Version | None,
        every: float,
        compress: Codec | None,
    ) -> None:
        check_seconds("every", every)
        if compress is not None:
            check_suitable_for_rows(compress)
        self._loop = loop
        self._table = table
        # From which it goes on; None for all rows. It is behind while there may be more at once.
        self._version = None if since is None else _checked(since)
        self._is_behind = False
        # When each owner was asked last for what has changed.
        self._asked: dict[str, float] = {}
        self._every = every
        self._codec = None if compress is None else (compress.name, compress.parameters())

    async def changes(self) -> AsyncGenerator[Change, None]:
        """The changes, without an end."""
        while True:
            async for change in self.round():
                yield change
            await asyncio.sleep(self._every)

    async def round(self) -> AsyncGenerator[Change, None]:
        """What has changed by now; the last one has a version."""
        looks, refusals, is_done = 0, 0, False
        while not is_done:
            try:
                if self._version is None:
                    async for change in self._all_rows():
                        yield change
                looks += 1
                async for change in self._together() if looks % (_LOOKS + 1) == 0 else self._latest():
                    yield change
                is_done = not self._is_behind
            except _TooOldError:
                self._version = None
            except RowsMovedError:
                self._version = None
                refusals += 1
                await pause(refusals)

    async def _all_rows(self) -> AsyncGenerator[Change, None]:
        """All rows, each as of some moment, and after a version from which on owners note what changes."""
        routing = await self._table.follower.follow_all()
        self._asked.clear()
        asked = {owner: self._ask(owner, "read_changes", None, 0) for owner in routing.owners}
        version: Version = {owner: tuple(now) for owner, (now, _) in (await _answers(asked)).items()}
        resets = True
        for owner in version:
            begin: int | None = 0
            while begin is not None:
                block, begin = await self._ask(owner, "read_block", begin, False)
                yield self._change(None, block, NO_IDS, resets)
                resets = False
                await self._keep_noting()
        self._version, self._is_behind = version, True

    async def _latest(self) -> AsyncGenerator[Change, None]:
        """What has changed since the version. A change that has a version is all of it as of one moment of each owner;
        in pieces they are as of several, and there is more behind them."""
        since, was_behind = self._since(), self._is_behind
        asked = {owner: self._ask(owner, "read_changes", each, 0) for owner, each in since.items()}
        found = await _answers(asked)
        if any(changed is None for _, changed in found.values()):
            raise _TooOldError
        version: Version = {owner: tuple(now) for owner, (now, _) in found.items()}
        self._is_behind = any(after is not None for _, (_, _, after) in found.values())
        blocks = [block for _, (block, _, _) in found.values()]
        block = {
            "ids": torch.cat([each["ids"] for each in blocks]),
            "values": torch.cat([self._values(each) for each in blocks]),
        }
        removed = torch.cat([gone for _, (_, gone, _) in found.values()])
        if was_behind or len(block["ids"]) or len(removed):
            yield self._change(None if self._is_behind else version, block, removed)
            await self._keep_noting()
        for owner, (_, (_, _, after)) in found.items():
            while after is not None:
                _, changed = await self._ask(owner, "read_changes", since[owner], after)
                if changed is None:
                    raise _TooOldError
                block, gone, after = changed
                yield self._change(None, block, gone)
                await self._keep_noting()
        self._version = version

    async def _together(self) -> AsyncGenerator[Change, None]:
        """The same in any number of pieces as of one moment of each owner, which keeps rows that change meanwhile as
        they were. If one does not go on with that, the changes have no version, and come again."""
        since = self._since()
        version: dict[str, tuple[int, int]] = {}
        readers, places = dict[str, int](), dict.fromkeys(since, 0)
        try:
            while places:
                asked = {
                    owner: self._ask(owner, "read_changes_together", since[owner], place, readers.get(owner))
                    for owner, place in places.items()
                }
                answers = await _answers(asked)
                readers |= {owner: reader for owner, (_, reader, changed) in answers.items() if changed is not None}
                for owner, (now, _, changed) in answers.items():
                    if changed is None:
                        return
                    version[owner] = tuple(now)
                    block, gone, after = changed
                    if after is None:
                        del places[owner]
                    else:
                        places[owner] = after
                    yield self._change(None, block, gone)
                    await self._keep_noting()
        finally:
            self._end(readers, places)
        self._since()  # with the same owners still
        yield Change(version, NO_IDS, torch.empty(0, self._table.dim, dtype=self._table.dtype, device="cpu"), NO_IDS)
        self._version, self._is_behind = version, False

    def _end(self, readers: Mapping[str, int], owners: Iterable[str]) -> None:
        """Has these owners keep nothing more for their readers; one that is not reached notices by itself."""
        for owner in owners:
            if owner in readers:
                with suppress(PsError):
                    asked = self._table.follower.call(owner, "end_reading", readers[owner])
                    asked.on_done(partial(_read_error, asked))

    def _since(self) -> Version:
        """The version to go on from. Raises `_TooOldError` if the table has other owners by now."""
        if self._version is None or set(self._version) != set(self._table.routing.owners):
            raise _TooOldError
        return self._version

    def _change(
        self, version: Version | None, block: Mapping[str, Any], removed: torch.Tensor, resets: bool = False
    ) -> Change:
        return Change(version, block["ids"], self._values(block), removed, resets)

    def _values(self, block: Mapping[str, Any]) -> torch.Tensor:
        return decoded(block, self._table.dim, self._table.dtype)

    async def _keep_noting(self) -> None:
        """Has all owners note what changes while others are read."""
        before = self._loop.time() - NOTED_SECONDS
        late = [owner for owner, asked in self._asked.items() if asked <= before]
        await _answers({owner: self._ask(owner, "read_changes", None, 0) for owner in late})

    def _ask(self, owner: str, method: str, *args: Any) -> Pending[Any]:
        if method != "read_block":
            self._asked[owner] = self._loop.time()
        mark, *_ = *self._table.follower.mark(owner, self._table.routing), 0
        return self._table.follower.call(owner, method, *args, mark, self._codec)

    def in_thread(self) -> Iterator[Change]:
        """The same for a plain thread, which waits for each."""
        loop, changes = self._loop, self.changes()
        try:
            while True:
                yield Pending.run(loop, changes.__anext__()).wait()
        finally:
            with suppress(ClosedError):  # with its client, it has ended, too
                Pending.run(loop, changes.aclose()).wait()


def decoded(block: Mapping[str, Any], dim: int, dtype: torch.dtype) -> torch.Tensor:
    """The values of a block, [n, dim], which a codec may have encoded."""
    values = block["values"]
    if isinstance(values, torch.Tensor):
        return values
    return decode(values, torch.empty(len(block["ids"]), dim, dtype=dtype, device="cpu"))


def _read_error(asked: Pending[Any]) -> None:
    """Nobody has to know of it."""
    if asked.failure is not None:
        asked.failure.read()


async def _answers(asked: Mapping[str, Pending[Any]]) -> dict[str, Any]:
    """The answers of all owners, or the first error once all have answered."""
    answers = await asyncio.gather(*asked.values(), return_exceptions=True)
    for each in answers:
        if isinstance(each, BaseException):
            raise each
    return dict(zip(asked, answers, strict=True))


def _checked(since: Any) -> Version:
    try:
        return {str(owner): (int(epoch), int(number)) for owner, (epoch, number) in since.items()}
    except (AttributeError, TypeError, ValueError):
        raise InvalidArgumentError(f"since= is the version of a change, not {since!r}") from None
