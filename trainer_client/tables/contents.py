"""What a program does with the rows of a table besides training them: puts, removes, reads, saves and evicts rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import torch

from ps_wire.errors import InvalidArgumentError, NonFiniteGradientError, RowsMovedError
from ps_wire.runtime.noop import noop
from ps_wire.runtime.threads import BLOCKING
from ps_wire.tables.bags import checked_ids
from ps_wire.tables.names import EVICT
from ps_wire.tables.options import RowOptimizer, from_plain
from trainer_client.pending import Joined, Pending
from trainer_client.tables.files import Block, Format, PartsReader, PartsWriter
from trainer_client.tables.following import MOST_REPEATS, Everywhere, Follower

if TYPE_CHECKING:
    from ps_wire.compression.choice import Choice
    from ps_wire.tables.routing import Routing
    from trainer_client.contexts.closing import Part
    from trainer_client.handles.handles import RemoteObject
    from trainer_client.optimizers.optimizer import DistributedOptimizer

T = TypeVar("T")

_PIECE_BYTES: Final = 4 << 20
"""About the most bytes of rows in a request."""

_PIECE_ROWS: Final = 1 << 16

_SAMPLE: Final = 100
"""The most ids of rows that were evicted which are named."""


class Evicted(NamedTuple):
    """The rows that were evicted, or would be.

    Attributes:
        rows: How many.
        by_owner: How many on each owner.
        sample: Ids of at most 100 of them, int64.
    """

    rows: int
    by_owner: dict[str, int]
    sample: torch.Tensor


class TableContents:
    """The rows of a table on all of its owners. Its attributes are described at `Table`."""

    optimizer: DistributedOptimizer

    def __init__(self, settings: Mapping[str, Any], routing: Routing, shards: Mapping[str, RemoteObject]) -> None:
        self.name: str = settings["name"]
        self.dim: int = settings["dim"]
        self.dtype: torch.dtype = settings["dtype"]
        self.rows: int | None = settings["rows"]
        self.row_optimizer: RowOptimizer = from_plain(settings["optimizer"])
        self.settings: Final = settings
        self.routing = routing
        self.compress: Choice | None = None
        self.shards = dict(shards)
        # Also of owners that have no rows any more: look-ups that were routed before may still be for them.
        self.known_shards = dict(shards)
        self.follower: Follower
        self._loop = next(iter(self.shards.values())).session.loop

    @property
    def parts(self) -> Sequence[Part]:
        """The parts of its optimizer, for passes that look up in it."""
        return self.optimizer.parts

    def size(self) -> Pending[int]:
        """The number of rows that exist on all owners."""
        return self._joined(lambda counts: sum(counts.values()), "count")

    def evict(self, share: float | None = None, *, dry_run: bool = False) -> Pending[Evicted]:
        """Removes the rows that have expired now, or a part of all rows. Owners do the first by themselves, too.

        Args:
            share: None for the rows that have expired. Or the part of the rows of each owner that goes, above 0 and at
                most 1: those first that make room first when the table is full. Rows that were looked up within the
                last `spare` seconds stay in any case.
            dry_run: Whether the rows stay, and it is only said which would go.

        Raises:
            InvalidArgumentError: The table was made without `evict=`, or without what this needs of it.
        """
        sample = max(1, _SAMPLE // len(self.shards))
        return self._joined(_evicted, EVICT, share, dry_run, sample)

    def remove(self, ids: torch.Tensor) -> Pending[int]:
        """Removes the rows of ids, which begin anew if they come again. Returns how many there were.

        Args:
            ids: int64 or int32 of any shape.

        Raises:
            InvalidArgumentError: The ids have another dtype, or are outside of a table of fixed size. Nothing was sent.
        """
        flat = checked_ids(ids, self.rows, self.name).reshape(-1)
        return Pending.run(self._loop, self._in_pieces("remove", {"ids": flat}, lambda part: part["ids"]))

    def clear(self) -> Pending[None]:
        """Removes all rows on all owners, gives their memory back, and forgets sightings of ids without a row."""
        return self._joined(noop, "clear")

    def upsert(
        self, ids: torch.Tensor, rows: torch.Tensor, state: Mapping[str, torch.Tensor] | None = None
    ) -> Pending[None]:
        """Puts rows in the place of those that ids have, or adds them: also ids that are not admitted yet.

        Everything is checked before it is sent, and names of the state before an owner changes a row. When an owner
        would have too many rows, it changes none for that request, but others have put theirs.

        Args:
            ids: Different ids, int64 or int32 [n].
            rows: Floating point numbers, [n, dim]; they are rounded to the dtype of the table.
            state: What the optimizer keeps for each row, by the names that `blocks` has without `state.`, all of them,
                float32 [n, width]; None to leave it as it is, and to begin it anew for rows that are added.

        Raises:
            InvalidArgumentError: An argument does not fit, or an id is there twice. Nothing has changed.
            NonFiniteGradientError: A row or its state has NaN or infinity. Nothing was sent.
            TooLargeError: An owner would have more rows than it may.
        """
        ids = checked_ids(ids, self.rows, self.name)
        block = {"ids": ids, "values": rows} | {f"state.{name}": each for name, each in (state or {}).items()}
        if ids.dim() != 1 or len(torch.unique(ids)) != len(ids):
            raise InvalidArgumentError(f"the ids of rows to put into table {self.name!r} are [n], each of them once")
        for name, each in block.items():
            if name == "ids":
                continue
            if not isinstance(each, torch.Tensor) or not each.is_floating_point() or each.layout != torch.strided:
                raise InvalidArgumentError(f"{name!r} for table {self.name!r} is a tensor of floating point numbers")
            wanted = (len(ids), self.dim) if name == "values" else (len(ids), *each.shape[1:2])
            if each.shape != wanted or each.dim() != 2:
                raise InvalidArgumentError(f"{name!r} for table {self.name!r} is {wanted}, not {tuple(each.shape)}")
            each = each.detach().to("cpu", self.dtype if name == "values" else torch.float32)
            if not each.isfinite().all():
                raise NonFiniteGradientError(f"{name!r} holds NaN or infinity; table {self.name!r} was not changed")
            block[name] = each
        return Pending.run(self._loop, self._put(block))

    async def blocks(self, *, state: bool = True) -> AsyncIterator[Block]:
        """All rows, in blocks of a few MiB, one owner after the other; two blocks are in memory at a time.

        Each block is as of one moment. Training goes on meanwhile: a row that exists all the time is there once, as it
        was at some moment; one that is added or removed meanwhile may be in it or not. The blocking client has the same
        with `for`.

        Args:
            state: Whether what the optimizer keeps is wanted.

        Yields:
            `ids`, int64 [n]; `values`, [n, dim]; what the optimizer keeps under `state.` and its name, float32
            [n, width]; and for tables whose rows are evicted `age`, int64 [n], the microseconds since a row was looked
            up, and for "least_frequent" `sightings`, int64 [n].

        Raises:
            RowsMovedError: Rows have moved to other owners since they began to be read: begin again.
        """
        routing = await self.follower.follow_all()
        for owner in routing.owners:
            mark = self.follower.mark(owner, routing)
            coming: Pending[Any] | None = self._call(owner, "read_block", 0, state, *mark)
            try:
                while coming is not None:
                    block, begin = await coming
                    coming = None if begin is None else self._call(owner, "read_block", begin, state, *mark)
                    if len(block["ids"]):
                        yield block
            finally:
                if coming is not None:
                    coming.cancel()

    def blocks_in_thread(self, *, state: bool = True) -> Iterator[Block]:
        """The same for a plain thread, which waits for each block."""
        routing = Pending.run(self._loop, self.follower.follow_all()).wait()
        for owner in routing.owners:
            mark = self.follower.mark(owner, routing)
            coming: Pending[Any] | None = self._call(owner, "read_block", 0, state, *mark)
            try:
                while coming is not None:
                    block, begin = coming.wait()
                    coming = None if begin is None else self._call(owner, "read_block", begin, state, *mark)
                    if len(block["ids"]):
                        yield block
            finally:
                if coming is not None:
                    coming.cancel()

    def export(self, path: str | Path, *, format: Format = "safetensors", state: bool = True) -> Pending[int]:
        """Writes all rows into files in this process, 64 MiB each, and `table.json`, which lists them, at the end.

        The rows are those of `blocks`, so training may go on.

        Args:
            path: A folder that is empty or does not exist, or has what an export has left whose program was killed.
                That is removed. An export that fails or is cancelled removes what it has written.
            format: "safetensors", or where pyarrow is installed "parquet". Rows in 16 bits are float32 in Parquet.
            state: Whether to write what the optimizer keeps.

        Returns:
            The number of rows.

        Raises:
            InvalidArgumentError: The folder has other files, another export writes into it, or what writes this format
                is not installed.
            OSError: A file cannot be written.
        """
        kind = self.row_optimizer.kind if state else ""
        writer = PartsWriter(Path(path), format, self.name, self.dim, self.dtype, kind)
        return Pending.run(self._loop, self._export(writer, state))

    def restore(self, path: str | Path, *, state: bool = True) -> Pending[int]:
        """Removes all rows, and puts those in that `export` has written, of this table or another one.

        Of two restores of a table at once, by any programs, the one that has begun last ends, and its rows are in the
        table; the other raises an error.

        All rows of the files are checked first. When an owner fails in the middle, the rest is missing: restore again.
        The table may have other owners than the one that was exported.

        Args:
            path: The folder.
            state: Whether what the optimizer keeps is wanted. If not, it begins anew.

        Returns:
            The number of rows.

        Raises:
            InvalidArgumentError: The folder has no whole export, or a file whose bytes have changed since, or rows of
                another width, outside of a table of fixed size, or with a state of another optimizer. No row has
                changed. Or another restore of the table has begun meanwhile.
            NonFiniteGradientError: A row or its state has NaN or infinity. No row has changed.
            TooLargeError: An owner would have more rows than it may.
            OSError: A file cannot be read.
        """
        return Pending.run(self._loop, self._restore(Path(path), state))

    async def _export(self, writer: PartsWriter, state: bool) -> int:
        try:
            await BLOCKING.run(writer.begin)
            async for block in self.blocks(state=state):
                await BLOCKING.run(writer.add, block)
            return await BLOCKING.run(writer.finish)
        except BaseException:
            # It waits for a thread that still writes.
            await BLOCKING.run(writer.discard)
            raise

    async def _restore(self, folder: Path, state: bool) -> int:
        reader = await BLOCKING.run(PartsReader, folder)
        await BLOCKING.run(reader.check, self.dim, self.row_optimizer.kind if state else None)
        # Every row is read twice: what an owner would refuse must be known before the rows that are there go.
        for block in await BLOCKING.run(self._check_rows, reader.blocks(_PIECE_ROWS, state)):
            # Asks about names, shapes and dtypes, without rows.
            await asyncio.gather(*[self._call(owner, "put", block) for owner in self.routing.owners])
        restore = await self._begin_restore()
        blocks = reader.blocks(_PIECE_ROWS, state)
        count = 0
        while (block := await BLOCKING.run(next, blocks, None)) is not None:
            block = _last_of_each(self._fitting(block))
            await self._put(block, restore)
            count += len(block["ids"])
        return count

    def _check_rows(self, blocks: Iterator[Block]) -> list[Block]:
        """Checks rows that are to be put. Returns one block without rows for each kind that there is."""
        empty: dict[tuple[Any, ...], Block] = {}
        for block in blocks:
            none = {name: each[:0] for name, each in self._fitting(block).items()}
            empty.setdefault(tuple(sorted((name, each.shape, str(each.dtype)) for name, each in none.items())), none)
        return list(empty.values())

    def _fitting(self, block: Block) -> Block:
        """Rows in the dtype of the table, checked: ids of a table of fixed size, and that numbers are finite in it."""
        fitting = {**block, "ids": checked_ids(block["ids"], self.rows, self.name)}
        fitting["values"] = block["values"].to(self.dtype)
        for name, each in fitting.items():
            if each.is_floating_point() and not each.isfinite().all():
                raise NonFiniteGradientError(f"{name!r} holds NaN or infinity; table {self.name!r} was not changed")
        return fitting

    async def _begin_restore(self) -> int:
        """Removes all rows on all owners; the number of the restore, which the first owner by name gives."""
        for _ in range(MOST_REPEATS):
            routing = self.routing
            first, *others = sorted(routing.owners)
            try:
                mark = self.follower.mark
                number: int = await self._call(first, "begin_restore", 0, *mark(first, routing))
                rest = [self._call(each, "begin_restore", number, *mark(each, routing)) for each in others]
                await asyncio.gather(*rest)
            except RowsMovedError:
                await self.follower.follow_all()
            else:
                return number
        raise RowsMovedError(
            f"rows of table {self.name!r} have moved all the time; it may have lost rows: restore again"
        )

    async def _put(self, block: Block, *more: Any) -> None:
        await self._in_pieces("put", block, lambda part: part, *more)

    async def _in_pieces(
        self, method: str, block: Block, argument: Callable[[Block], Any], *more: Any, repeats: int = 0
    ) -> int:
        """Sends rows to all their owners in pieces; the sum of the answers, or the first error when all are done."""
        owner_of, owners = self.routing.owner_of(block["ids"]), self.routing.owners
        chosen = [(owner_of == number).nonzero()[:, 0] for number in range(len(owners))]
        row_bytes = sum(each.nbytes // max(len(each), 1) for each in block.values())
        rows = max(1, min(_PIECE_ROWS, _PIECE_BYTES // max(row_bytes, 1)))

        async def send(owner: str, positions: torch.Tensor) -> int:
            count = 0
            for some in positions.split(rows):
                part = {name: each[some] for name, each in block.items()}
                try:
                    count += await self._call(owner, method, argument(part), *more)
                except RowsMovedError:
                    if repeats == MOST_REPEATS:
                        raise
                    await self.follow(owner)
                    count += await self._in_pieces(method, part, argument, *more, repeats=repeats + 1)
            return count

        work = [send(owner, each) for owner, each in zip(owners, chosen, strict=True) if len(each)]
        answers = await asyncio.gather(*work, return_exceptions=True)
        for each in answers:
            if isinstance(each, BaseException):
                raise each
        return sum(each for each in answers if isinstance(each, int))

    def _joined(self, read: Callable[[dict[str, Any]], T], method: str, *args: Any) -> Joined[T]:
        """Calls a method of the rows of all owners. `read` makes the result from theirs, by name."""

        def ask(routing: Routing, owner: str) -> Pending[Any]:
            return self._call(owner, method, *args, *self.follower.mark(owner, routing))

        return Everywhere(self._loop, self.follower, ask, read, counts_once=method == EVICT)

    async def follow(self, owner: str) -> None:
        """Takes up where rows are, from an owner that does not have some of them any more."""
        await self.follower.follow(owner)

    def _call(self, owner: str, method: str, *args: Any) -> Pending[Any]:
        """Calls a method of the rows of an owner, also inside a context, which has nothing to do with it."""
        with torch.no_grad():
            return self.known_shards[owner].call(method, *args)


def _evicted(answers: dict[str, Any]) -> Evicted:
    by_owner = {owner: int(rows) for owner, (rows, _) in answers.items()}
    return Evicted(sum(by_owner.values()), by_owner, torch.cat([sample for _, sample in answers.values()]))


def _last_of_each(block: Block) -> Block:
    """A block without the earlier rows of ids that are there twice: they went and came back during an export."""
    different, inverse = torch.unique(block["ids"], return_inverse=True)
    if len(different) == len(inverse):
        return dict(block)
    last = torch.zeros_like(different).scatter_reduce_(0, inverse, torch.arange(len(inverse), device="cpu"), "amax")
    return {name: each[last] for name, each in block.items()}
