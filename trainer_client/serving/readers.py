"""Readers: they serve rows and models to many concurrent callers, with few requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import torch

from ps_wire.errors import InvalidArgumentError
from ps_wire.tables.bags import checked_ids
from trainer_client.tables.reading import RowsRead

if TYPE_CHECKING:
    from trainer_client.handles.handles import RemoteModule
    from trainer_client.pending import Pending
    from trainer_client.serving.pinned_module import PinnedModule
    from trainer_client.serving.pinned_table import PinnedTable
    from trainer_client.serving.window import Window
    from trainer_client.tables.table import Table

R = TypeVar("R")

MOST_IDS: Final = 65_536
MOST_SAMPLES: Final = 1_024

Inputs = tuple[torch.Tensor, ...]


class Reader(Generic[R]):
    """Reads a table or calls a module for many callers at once. Made by `Client.reader`.

        reader = ps.reader(items, window_ms=2)
        found = await reader(ids)              # a `RowsRead`, as of items.read(ids)

    What callers of this process ask within the window is one request to each owner. Any thread may ask.
    """

    def __init__(self, window: Window[Any, R], size: Callable[[Inputs], int], title: str) -> None:
        self._window = window
        self._size = size
        self._title = title

    def __call__(self, *inputs: torch.Tensor) -> Pending[R]:
        """The rows of ids, as `Table.read` gives them; or the result of the module for these inputs, as
        `RemoteModule.read` gives it. A request that fails is repeated for each of its callers alone, and raises for
        those whose own input it does not like."""
        return self._window.add(inputs, self._size(inputs))

    def __repr__(self) -> str:
        return f"<Reader of {self._title}>"


class TableRows:
    """Reads rows for several callers at once. What each gets shares no memory with that of others, so that one who
    keeps a few rows does not keep all."""

    def __init__(self, table: Table | PinnedTable, default: float | torch.Tensor, timeout: float | None) -> None:
        self._table = table
        self._default = default
        self._timeout = timeout

    async def ask(self, questions: Sequence[Inputs]) -> list[RowsRead]:
        """The rows that each caller has asked for, by its ids alone."""
        given = [_only(each) for each in questions]
        if len(given) == 1:
            return [await self._read(given[0])]
        checked = [checked_ids(each, self._table.rows, self._table.name) for each in given]
        found = await self._read(torch.cat([each.reshape(-1) for each in checked]))
        sizes = [each.numel() for each in checked]
        parts = zip(checked, found.values.split(sizes), found.found.split(sizes), strict=True)
        return [
            RowsRead(values.clone().view(*ids.shape, -1), there.clone().view(ids.shape), found.versions)
            for ids, values, there in parts
        ]

    def size(self, inputs: Inputs) -> int:
        """The ids of a caller."""
        return inputs[0].numel() if inputs and isinstance(inputs[0], torch.Tensor) else 1

    def _read(self, ids: torch.Tensor) -> Pending[RowsRead]:
        return self._table.read(ids, default=self._default, timeout=self._timeout)


def _only(inputs: Inputs) -> torch.Tensor:
    if len(inputs) != 1:
        raise InvalidArgumentError(f"a reader of a table is given ids alone, not {len(inputs)} arguments")
    return inputs[0]


class ModuleResults:
    """Calls a module for several callers at once, whose inputs become one batch. What each gets shares no memory with
    that of others.

    The results are divided if all of their tensors have a row for each sample. A tensor of another kind may by chance
    have as many rows as a batch has samples, so that this is known once it was so in batches of two sizes.
    """

    def __init__(self, module: RemoteModule | PinnedModule, timeout: float | None) -> None:
        self._module = module
        self._timeout = timeout
        # The sizes of batches in which it was so, up to two; None once it was not.
        self._sizes: set[int] | None = set()

    async def ask(self, questions: Sequence[Inputs]) -> list[Any]:
        """The result of each caller."""
        if len(questions) == 1 or self._sizes is None:
            return list(await asyncio.gather(*map(self._alone, questions)))
        sizes = [_batch(each) for each in questions]
        if not all(_are_alike(questions[0], each) for each in questions):
            raise InvalidArgumentError("inputs of one batch have the same dtypes, and shapes but for their first sizes")
        total = sum(sizes)
        if self._sizes <= {total}:
            # These tell whether results may be divided.
            some = questions if max(sizes) == total else questions[:1]
            first = await asyncio.gather(*map(self._alone, some))
            return [*first, *await self.ask(questions[len(some) :])] if len(some) < len(questions) else list(first)
        results = await self._read(tuple(torch.cat(each) for each in zip(*questions, strict=True)))
        if not self._note(results, total):
            return await self.ask(questions)
        return _split(results, sizes)

    async def _alone(self, inputs: Inputs) -> Any:
        results = await self._read(inputs)
        if inputs and isinstance(inputs[0], torch.Tensor) and inputs[0].dim():
            self._note(results, len(inputs[0]))
        return results

    def _note(self, results: Any, size: int) -> bool:
        """Whether the results of a batch of this size may be divided."""
        if self._sizes is not None:
            has_rows = _has_rows(results, size)
            self._sizes = {*[*self._sizes][:1], size} if has_rows else None
        return self._sizes is not None

    def size(self, inputs: Inputs) -> int:
        """The samples of a caller."""
        first = inputs[0] if inputs else None
        return len(first) if isinstance(first, torch.Tensor) and first.dim() else 1

    def _read(self, inputs: Inputs) -> Pending[Any]:
        with torch.no_grad():
            return self._module.for_reading(self._timeout)(*inputs)


def _batch(inputs: Inputs) -> int:
    """The samples of a caller, which all of its inputs have."""
    sizes = {len(each) if isinstance(each, torch.Tensor) and each.dim() else -1 for each in inputs}
    if len(sizes) != 1 or -1 in sizes:
        raise InvalidArgumentError("inputs of a reader are tensors whose first size is the same: that of the batch")
    return sizes.pop()


def _are_alike(one: Inputs, other: Inputs) -> bool:
    return [(each.dtype, each.shape[1:]) for each in one] == [(each.dtype, each.shape[1:]) for each in other]


def _has_rows(results: Any, size: int) -> bool:
    """Whether all values in the results are tensors with so many rows."""
    if isinstance(results, torch.Tensor):
        return results.dim() > 0 and len(results) == size
    if isinstance(results, dict):
        results = list(results.values())
    return isinstance(results, tuple | list) and all(_has_rows(each, size) for each in results)


def _split(results: Any, sizes: list[int]) -> list[Any]:
    """The part of each caller in the results of all."""
    if isinstance(results, torch.Tensor):
        return [each.clone() for each in results.split(sizes)]
    if isinstance(results, tuple | list):
        kind, fields = type(results), [_split(each, sizes) for each in results]
        return [kind(each[number] for each in fields) for number in range(len(sizes))]
    parts = {name: _split(each, sizes) for name, each in results.items()}
    return [{name: each[number] for name, each in parts.items()} for number in range(len(sizes))]
