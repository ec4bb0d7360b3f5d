"""What is asked of the owners of a table for a look-up, and how its result is made from their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag

from ps_wire.tables.bags import Bags, checked_ids, make_bags
from ps_wire.tables.sums import grouped, sum_by

if TYPE_CHECKING:
    from ps_wire.tables.routing import Routing


class Described(Protocol):
    """What a look-up has to know of a table: `rows` is None if it takes any id."""

    @property
    def name(self) -> str: ...
    @property
    def dim(self) -> int: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def rows(self) -> int | None: ...
    @property
    def routing(self) -> Routing: ...


D = TypeVar("D", bound=Described)
D_co = TypeVar("D_co", bound=Described, covariant=True)

_ROOT: Final = torch.empty(0, device="cpu", requires_grad=True)
"""The input of results that depend on no row. No gradient is accumulated there."""

_MOST: Final = 1 << 31
"""The first number that is no int32."""


class Repeat(torch.autograd.Function):
    """Takes rows by position, as `index_select` does. Its backward adds the gradients of a row in their order. Torch
    adds them one after the other to a tensor of zeros, which takes three times as long for a batch of 80,000."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        ctx.positions, ctx.dtype = positions, rows.dtype
        return rows.index_select(0, positions)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        # Every row is at some position, so there is a sum for each.
        return sum_by(grouped(ctx.positions), gradient.contiguous()).to(ctx.dtype), None


class Nothing(torch.autograd.Function):
    """Zeros that require a gradient, as the rows of no ids do in local torch, and hand none on."""

    @staticmethod
    def forward(ctx: Any, root: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(*shape, dtype=dtype, device="cpu")

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None, None]:
        return None, None, None


def zeros(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """The result of a look-up that no owner has a row of."""
    made: torch.Tensor = Nothing.apply(_ROOT, shape, dtype)  # type: ignore[no-untyped-call]
    return made


def repeated(parts: Sequence[torch.Tensor], positions: torch.Tensor | None) -> torch.Tensor:
    """The rows of several answers, [n, dim] each, by their positions among all; None for all, in their order."""
    rows = parts[0] if len(parts) == 1 else torch.cat(list(parts))
    if positions is None:
        return rows
    made: torch.Tensor = Repeat.apply(rows, positions)  # type: ignore[no-untyped-call]
    return made


class Asked(NamedTuple):
    """What one owner is asked: ids, int64 [n], at least one. Without bags they are different ones, in ascending order.
    `offsets` say where each bag begins; None to get the row of each id. `weights` are what the row of each id is
    multiplied with; None for 1. `given` is how many ids the program has given for these; None if none was left out."""

    ids: torch.Tensor
    offsets: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    given: int | None = None

    def as_sent(self, table: Described, mark: int = 0) -> tuple[Any, ...]:
        """What is sent: int32 where that has the same values. The mark is that of the owner in the routing."""
        fits = table.rows <= _MOST if table.rows is not None else _fits(self.ids, is_sorted=self.offsets is None)
        ids = self.ids.int() if fits else self.ids
        offsets = self.offsets
        offsets = offsets.int() if offsets is not None and len(ids) < _MOST else offsets
        repeats = self.given is not None and self.given > len(ids)
        if mark:
            return ids, offsets, self.weights, self.given if repeats else len(ids), mark
        return ids, offsets, self.weights, *([self.given] if repeats else [])


class Query(NamedTuple, Generic[D_co]):
    """The part of a look-up that is for one table. `asked` has what each owner is asked, by name; owners without any of
    the ids are left out. `finish` makes the result from their answers, in the same order. The routing says which owner
    has which ids."""

    table: D_co
    asked: Mapping[str, Asked]
    finish: Callable[[list[torch.Tensor]], torch.Tensor]
    routing: Routing


def _fits(ids: torch.Tensor, is_sorted: bool) -> bool:
    """Whether ids, of which there is at least one, are numbers that int32 has."""
    least, greatest = (ids[0], ids[-1]) if is_sorted else torch.aminmax(ids)
    return int(least) >= -_MOST and int(greatest) < _MOST


def rows_query(table: D, ids: torch.Tensor) -> Query[D]:
    """Asks for the row of each id. Raises `InvalidArgumentError` if the ids do not fit the table."""
    flat, routing = checked_ids(ids, table.rows, table.name), table.routing
    asked, positions = _distinct(routing, flat.reshape(-1))
    return Query(table, asked, partial(_spread, (*flat.shape, table.dim), table.dtype, positions), routing)


def _distinct(routing: Routing, ids: torch.Tensor) -> tuple[dict[str, Asked], torch.Tensor]:
    """Asks for the row of each distinct id; and for each of the given ids, which row of all answers it is."""
    distinct, positions = torch.unique(ids, return_inverse=True)
    owners = routing.owners
    asked: dict[str, Asked] = {}
    if len(owners) == 1:
        if len(distinct):
            asked[owners[0]] = Asked(distinct, given=len(ids))
    else:
        owner_of = routing.owner_of(distinct)
        order = owner_of.argsort(stable=True)
        counts = torch.bincount(owner_of, minlength=len(owners)).tolist()
        given = torch.bincount(owner_of[positions], minlength=len(owners)).tolist()
        # The answers come one owner after the other.
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device="cpu")
        positions = place[positions]
        for owner, part, count in zip(owners, distinct[order].split(counts), given, strict=True):
            if len(part):
                asked[owner] = Asked(part, given=count)
    return asked, positions


def bags_query(
    table: D,
    ids: torch.Tensor,
    offsets: torch.Tensor | None = None,
    mode: str = "sum",
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Query[D]:
    """Asks for the pooled rows of bags of ids; arguments and errors as for `Table.bag`."""
    checked = checked_ids(ids, table.rows, table.name)
    if table.rows is not None and padding_idx is not None and padding_idx < 0:
        padding_idx += table.rows
    bags = make_bags(checked, offsets, mode, per_sample_weights, include_last_offset, padding_idx)
    shape, routing = (len(bags.counts), table.dim), table.routing
    if mode == "max":
        asked, positions = _distinct(routing, bags.ids)
        return Query(table, asked, partial(_largest, shape, positions, bags.offsets), routing)
    counts = bags.counts if mode == "mean" else None
    return Query(table, _pooled(routing, bags), partial(_pool, shape, counts), routing)


def _pooled(routing: Routing, bags: Bags) -> dict[str, Asked]:
    """Asks for the sums of the rows of bags."""
    owners = routing.owners
    if not len(bags.ids):
        return {}
    if len(owners) == 1:
        return {owners[0]: Asked(bags.ids, bags.offsets, bags.weights)}
    parts = zip(owners, bags.split(routing.owner_of(bags.ids), len(owners)), strict=True)
    return {owner: Asked(part.ids, part.offsets, part.weights) for owner, part in parts if len(part.ids)}


def part_query(query: Query[D], owner: str) -> Query[D]:
    """Asks again for what one owner was asked, by the routing as it is now."""
    table, (ids, offsets, weights, _), routing = query.table, query.asked[owner], query.table.routing
    if offsets is None:
        asked, positions = _distinct(routing, ids)
        return Query(table, asked, partial(_spread, (len(ids), table.dim), table.dtype, positions), routing)
    counts = torch.cat([offsets, torch.tensor([len(ids)], device="cpu")]).diff()
    pooled = _pooled(routing, Bags(ids, counts, weights))
    return Query(table, pooled, partial(_pool, (len(counts), table.dim), None), routing)


def _spread(
    shape: tuple[int, ...], dtype: torch.dtype, positions: torch.Tensor, answers: list[torch.Tensor]
) -> torch.Tensor:
    if not answers:
        return zeros(shape, dtype)
    return repeated(answers, positions).view(shape)


def _pool(shape: tuple[int, int], counts: torch.Tensor | None, answers: list[torch.Tensor]) -> torch.Tensor:
    if not answers:
        return zeros(shape, torch.float32)
    pooled = answers[0]
    for more in answers[1:]:
        pooled = pooled + more
    if counts is None:
        return pooled
    return pooled / counts.clamp(min=1).unsqueeze(1).to(pooled.dtype)


def _largest(
    shape: tuple[int, int], positions: torch.Tensor, offsets: torch.Tensor, answers: list[torch.Tensor]
) -> torch.Tensor:
    """The largest numbers of columns in bags. Of equal ones, on any owner, the first gets the gradient, as in torch."""
    if not answers:
        return zeros(shape, torch.float32)
    return embedding_bag(positions, repeated(answers, None).float(), offsets, mode="max")
