"""A table as it was when a snapshot was made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch

from ps_wire.compression.registry import check_suitable_for_rows
from ps_wire.errors import RowsMovedError
from ps_wire.tables.bags import checked_ids
from ps_wire.tables.routing import slots_of
from ps_wire.tables.versions import RowsVersion
from trainer_client.pending import DEFAULT, Joined, Pending
from trainer_client.tables.changes import NO_IDS, Change, Version, decoded
from trainer_client.tables.reading import RowsRead, by_owner, default_row

if TYPE_CHECKING:
    from ps_wire.compression.codec import Codec
    from trainer_client.handles.handles import RemoteObject
    from trainer_client.tables.files import Block


class PinnedTable:
    """The rows of a table as they were when a snapshot was made: `snapshot[items]`. It is read from as a table.

    Attributes:
        name: The name of the table.
        dim: Numbers in a row.
        dtype: Their dtype.
        rows: Number of rows of a table of fixed size; None for one that takes any id.
        versions: By owner the version of its rows.
    """

    def __init__(self, parts: Mapping[str, RemoteObject], described: Mapping[str, Mapping[str, Any]]) -> None:
        settings = next(iter(described.values()))["settings"]
        self.name: str = settings["name"]
        self.dim: int = settings["dim"]
        self.dtype: torch.dtype = settings["dtype"]
        self.rows: int | None = settings["rows"]
        self.versions: Final = {owner: RowsVersion(*each["version"]) for owner, each in described.items()}
        self._parts: Final = dict(parts)
        self._owners: Final = tuple(parts)
        self._loop = next(iter(parts.values())).session.loop
        slots = torch.stack([described[owner]["slots"] for owner in self._owners])
        if not bool((slots.sum(0) == 1).all()):
            raise RowsMovedError(f"rows of table {self.name!r} have moved from owner to owner meanwhile")
        self._of_slot: Final = slots.int().argmax(0)

    def read(
        self, ids: torch.Tensor, *, default: float | torch.Tensor = 0.0, timeout: float | None = DEFAULT
    ) -> Pending[RowsRead]:
        """As `Table.read`, with the rows as they were.

        Raises:
            StaleHandleError: The snapshot was removed, or the owner was started again.
        """
        checked, row = checked_ids(ids, self.rows, self.name), default_row(self, default)

        async def reading() -> RowsRead:
            distinct, positions = torch.unique(checked.reshape(-1), return_inverse=True)
            values, found = row.repeat(len(distinct), 1), torch.zeros(len(distinct), dtype=torch.bool, device="cpu")
            of_ids = self._of_slot[slots_of(distinct)]
            asked = by_owner(self._owners, of_ids, torch.arange(len(distinct), device="cpu"))
            answers = await asyncio.gather(
                *(self._call(owner, "read", distinct[where], timeout=timeout) for owner, where in asked.items())
            )
            for where, (rows, there) in zip(asked.values(), answers, strict=True):
                found[where] = there
                values[where[there]] = rows
            shape = checked.shape
            versions = {owner: self.versions[owner] for owner in asked}
            return RowsRead(values[positions].view(*shape, self.dim), found[positions].view(shape), versions)

        return Pending.run(self._loop, reading())

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a table of a snapshot is not trained, and so not called: read(ids) gives its rows")

    def size(self) -> Pending[int]:
        """The number of its rows on all owners."""
        return Joined(self._loop, [self._call(owner, "count") for owner in self._owners], sum, "size()")

    async def blocks(self) -> AsyncIterator[Block]:
        """All rows, in blocks of a few MiB, one owner after the other. The blocking client has the same with `for`.

        Yields:
            `ids`, int64 [n], and `values`, [n, dim].
        """
        async for block in self._blocks(None):
            yield block

    def blocks_in_thread(self) -> Iterator[Block]:
        """The same for a plain thread, which waits for each block."""
        for owner in self._owners:
            begin: int | None = 0
            while begin is not None:
                block, begin = self._call(owner, "read_block", begin).wait()
                if len(block["ids"]):
                    yield block

    async def _blocks(self, codec: tuple[str, Any] | None) -> AsyncIterator[Block]:
        for owner in self._owners:
            begin: int | None = 0
            while begin is not None:
                block, begin = await self._call(owner, "read_block", begin, codec)
                if len(block["ids"]):
                    yield {"ids": block["ids"], "values": decoded(block, self.dim, self.dtype)}

    def following(self, since: Version | None, every: float, compress: Codec | None = None) -> PinnedChanges:
        """What an export reads: see `Table.following`."""
        if compress is not None:
            check_suitable_for_rows(compress)
        return PinnedChanges(self, since, None if compress is None else (compress.name, compress.parameters()))

    def _call(self, owner: str, method: str, *args: Any, timeout: float | None = DEFAULT) -> Pending[Any]:
        with torch.no_grad():
            return self._parts[owner].options(seed=0, timeout=timeout).call(method, *args)

    def __repr__(self) -> str:
        return f"<PinnedTable {self.name!r}, on {', '.join(self._owners)}>"


class PinnedChanges:
    """All rows of a pinned table, unless they are known already: it does not change."""

    def __init__(self, table: PinnedTable, since: Version | None, codec: tuple[str, Any] | None) -> None:
        self._table = table
        self._since = since
        self._codec = codec

    async def round(self) -> AsyncGenerator[Change, None]:
        """As `Following.round`."""
        version: Version = dict(self._table.versions)
        if self._since is not None and {owner: tuple(each) for owner, each in self._since.items()} == version:
            return
        resets = True
        async for block in self._table._blocks(self._codec):
            yield Change(None, block["ids"], block["values"], NO_IDS, resets)
            resets = False
        none = torch.empty(0, self._table.dim, dtype=self._table.dtype, device="cpu")
        yield Change(version, NO_IDS, none, NO_IDS, resets)
        self._since = version
