"""Look-ups in one table or several: what each owner is asked, with one request, and how answers are put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag

from ps_wire.close_names import hint
from ps_wire.compression.registry import encode
from ps_wire.errors import InvalidArgumentError
from ps_wire.tables.sums import grouped, sum_by
from trainer_client.contexts.current import current_context
from trainer_client.pending import DEFAULT, Joined, Pending
from trainer_client.tables.bags import checked_ids, make_bags

if TYPE_CHECKING:
    import asyncio

    from ps_wire.compression.codec import Encoded
    from trainer_client.contexts.closing import Part
    from trainer_client.tables.contents import TableContents

T = TypeVar("T")

_ROOT: Final = torch.empty(0, requires_grad=True)
"""The input of results that depend on no row. No gradient is accumulated there."""

_MOST: Final = 1 << 31
"""The first number that is no int32."""

_BAG: Final = ("ids", "offsets", "mode", "per_sample_weights", "include_last_offset", "padding_idx")
"""The arguments of `Table.bag` that say what is looked up."""


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
        return torch.zeros(*shape, dtype=dtype)

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

    def as_sent(self, table: TableContents) -> tuple[Any, ...]:
        """What is sent: int32 where that has the same values."""
        fits = table.rows <= _MOST if table.rows is not None else _fits(self.ids, is_sorted=self.offsets is None)
        ids = self.ids.int() if fits else self.ids
        offsets = self.offsets
        offsets = offsets.int() if offsets is not None and len(ids) < _MOST else offsets
        repeats = self.given is not None and self.given > len(ids)
        return ids, offsets, self.weights, *([self.given] if repeats else [])


class Query(NamedTuple):
    """The part of a look-up that is for one table. `asked` has what each owner is asked, by name; owners without any of
    the ids are left out. `finish` makes the result from their answers, in the same order."""

    table: TableContents
    asked: Mapping[str, Asked]
    finish: Callable[[list[torch.Tensor]], torch.Tensor]


def _fits(ids: torch.Tensor, is_sorted: bool) -> bool:
    """Whether ids, of which there is at least one, are numbers that int32 has."""
    least, greatest = (ids[0], ids[-1]) if is_sorted else torch.aminmax(ids)
    return int(least) >= -_MOST and int(greatest) < _MOST


def rows_query(table: TableContents, ids: torch.Tensor) -> Query:
    """Asks for the row of each id. Raises `InvalidArgumentError` if the ids do not fit the table."""
    flat = checked_ids(ids, table.rows, table.name)
    asked, positions = _distinct(table, flat.reshape(-1))
    return Query(table, asked, partial(_spread, (*flat.shape, table.dim), table.dtype, positions))


def _distinct(table: TableContents, ids: torch.Tensor) -> tuple[dict[str, Asked], torch.Tensor]:
    """Asks for the row of each distinct id; and for each of the given ids, which row of all answers it is."""
    distinct, positions = torch.unique(ids, return_inverse=True)
    owners, routing = table.routing.owners, table.routing
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
        place[order] = torch.arange(len(order))
        positions = place[positions]
        for owner, part, count in zip(owners, distinct[order].split(counts), given, strict=True):
            if len(part):
                asked[owner] = Asked(part, given=count)
    return asked, positions


def bags_query(
    table: TableContents,
    ids: torch.Tensor,
    offsets: torch.Tensor | None = None,
    mode: str = "sum",
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Query:
    """Asks for the pooled rows of bags of ids; arguments and errors as for `Table.bag`."""
    checked = checked_ids(ids, table.rows, table.name)
    if table.rows is not None and padding_idx is not None and padding_idx < 0:
        padding_idx += table.rows
    bags = make_bags(checked, offsets, mode, per_sample_weights, include_last_offset, padding_idx)
    shape = (len(bags.counts), table.dim)
    if mode == "max":
        asked, positions = _distinct(table, bags.ids)
        return Query(table, asked, partial(_largest, shape, positions, bags.offsets))
    owners = table.routing.owners
    asked = {}
    if len(bags.ids):
        if len(owners) == 1:
            asked[owners[0]] = Asked(bags.ids, bags.offsets, bags.weights)
        else:
            parts = bags.split(table.routing.owner_of(bags.ids), len(owners))
            for owner, part in zip(owners, parts, strict=True):
                if len(part.ids):
                    asked[owner] = Asked(part.ids, part.offsets, part.weights)
    counts = bags.counts if mode == "mean" else None
    return Query(table, asked, partial(_pool, shape, counts))


def query_of(table: TableContents, what: Any) -> Query:
    """The query for an entry of `Client.look_up`: ids, or the arguments of `Table.bag` as a tuple or dictionary."""
    if isinstance(what, torch.Tensor):
        return rows_query(table, what)
    if isinstance(what, tuple) and 2 <= len(what) <= 3:
        return bags_query(table, *what)
    if isinstance(what, Mapping) and "ids" in what:
        if unknown := [each for each in what if each not in _BAG]:
            close = hint(str(unknown[0]), _BAG)
            raise InvalidArgumentError(
                f"bag() of table {table.name!r} has no argument {unknown[0]!r}; it has {', '.join(_BAG)}{close}"
            )
        return bags_query(table, **what)
    raise InvalidArgumentError(
        f"what is looked up in table {table.name!r} are ids, or for bags a tuple (ids, offsets), (ids, offsets, mode), "
        "or a dictionary of the arguments of bag()"
    )


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


def look_up(
    loop: asyncio.AbstractEventLoop,
    queries: Sequence[Query],
    timeout: float | None,
    read: Callable[[list[torch.Tensor]], T],
) -> Pending[T]:
    """Asks the owners of some tables, each with one request. Inside a context the calls are recorded. `read` makes the
    result from those of the queries, in the thread that reads it."""
    by_owner: dict[str, list[int]] = {}
    for number, query in enumerate(queries):
        for owner in query.asked:
            by_owner.setdefault(owner, []).append(number)
    requests = []
    for owner, numbers in by_owner.items():
        tables = [queries[number].table for number in numbers]
        target = tables[0].shards[owner]
        parts = []
        for number, table in zip(numbers, tables, strict=True):
            shard = table.shards[owner]
            parts.append((None if shard is target else shard, *queries[number].asked[owner].as_sent(table)))
        handle = target if timeout == DEFAULT else target.options(timeout=timeout)
        is_plain = all(each.compress is None for each in tables)
        requests.append(handle.call_encoding(None if is_plain else partial(_encoded, tables), "look_up", parts))
    context = current_context() if torch.is_grad_enabled() else None
    noted = None if context is None else context.looked_up
    return Joined(loop, requests, partial(_finish, queries, by_owner, noted, read), "a look-up")


def _encoded(tables: Sequence[TableContents], position: int, gradient: torch.Tensor) -> torch.Tensor | Encoded:
    """The gradient of the rows of one of some tables, as it is sent."""
    table = tables[position]
    codec = None if table.compress is None else table.compress.codec_for(table.name, gradient)
    return gradient if codec is None else encode(codec, gradient)


def _finish(
    queries: Sequence[Query],
    asked: Mapping[str, Sequence[int]],
    noted: dict[str, Sequence[Part]] | None,
    read: Callable[[list[torch.Tensor]], T],
    answers: list[Any],
) -> T:
    """What `read` makes of the results. `noted` gets the tables that the pass that has recorded this may train."""
    found: list[dict[str, torch.Tensor]] = [{} for _ in queries]
    for (owner, numbers), answer in zip(asked.items(), answers, strict=True):
        for number, rows in zip(numbers, answer, strict=True):
            found[number][owner] = rows
    # Grad mode counted when the calls were made, not when their results are read.
    with torch.set_grad_enabled(noted is not None):
        results = [
            query.finish([rows[owner] for owner in query.asked]) for query, rows in zip(queries, found, strict=True)
        ]
    if noted is not None:
        for query, rows in zip(queries, found, strict=True):
            if any(each.requires_grad for each in rows.values()):  # those of a frozen table do not
                noted[query.table.name] = query.table.optimizer.parts
    return read(results)
