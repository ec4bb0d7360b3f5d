"""Look-ups in one table or several: what each owner is asked, with one request, and how answers are put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag

from ps_wire.close_names import hint
from ps_wire.compression.registry import encode
from ps_wire.errors import InvalidArgumentError, RowsMovedError
from ps_wire.tables.sums import grouped, sum_by
from trainer_client.contexts.current import current_context
from trainer_client.graph.current import inside
from trainer_client.pending import DEFAULT, Pending
from trainer_client.tables.bags import Bags, checked_ids, make_bags
from trainer_client.tables.following import MOST_REPEATS
from trainer_client.tables.redirected import LookingUp

if TYPE_CHECKING:
    import asyncio

    from ps_wire.compression.codec import Encoded
    from ps_wire.tables.routing import Routing
    from trainer_client.contexts.closing import Part
    from trainer_client.contexts.context import Context
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

    def as_sent(self, table: TableContents, mark: int = 0) -> tuple[Any, ...]:
        """What is sent: int32 where that has the same values. The mark is that of the owner in the routing."""
        fits = table.rows <= _MOST if table.rows is not None else _fits(self.ids, is_sorted=self.offsets is None)
        ids = self.ids.int() if fits else self.ids
        offsets = self.offsets
        offsets = offsets.int() if offsets is not None and len(ids) < _MOST else offsets
        repeats = self.given is not None and self.given > len(ids)
        if mark:
            return ids, offsets, self.weights, self.given if repeats else len(ids), mark
        return ids, offsets, self.weights, *([self.given] if repeats else [])


class Query(NamedTuple):
    """The part of a look-up that is for one table. `asked` has what each owner is asked, by name; owners without any of
    the ids are left out. `finish` makes the result from their answers, in the same order. The routing says which owner
    has which ids."""

    table: TableContents
    asked: Mapping[str, Asked]
    finish: Callable[[list[torch.Tensor]], torch.Tensor]
    routing: Routing


def _fits(ids: torch.Tensor, is_sorted: bool) -> bool:
    """Whether ids, of which there is at least one, are numbers that int32 has."""
    least, greatest = (ids[0], ids[-1]) if is_sorted else torch.aminmax(ids)
    return int(least) >= -_MOST and int(greatest) < _MOST


def rows_query(table: TableContents, ids: torch.Tensor) -> Query:
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


def part_query(query: Query, owner: str) -> Query:
    """Asks again for what one owner was asked, by the routing as it is now."""
    table, (ids, offsets, weights, _), routing = query.table, query.asked[owner], query.table.routing
    if offsets is None:
        asked, positions = _distinct(routing, ids)
        return Query(table, asked, partial(_spread, (len(ids), table.dim), table.dtype, positions), routing)
    counts = torch.cat([offsets, torch.tensor([len(ids)])]).diff()
    pooled = _pooled(routing, Bags(ids, counts, weights))
    return Query(table, pooled, partial(_pool, (len(counts), table.dim), None), routing)


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
    repeats: int = 0,
) -> Pending[T]:
    """Asks the owners of some tables, each with one request. Inside a context the calls are recorded. `read` makes the
    result from those of the queries, in the thread that reads it. What `repeats` others takes no seed of the client's;
    it is that many times that rows have moved meanwhile."""
    by_owner: dict[str, list[int]] = {}
    for number, query in enumerate(queries):
        for owner in query.asked:
            by_owner.setdefault(owner, []).append(number)
    requests = []
    for owner, numbers in by_owner.items():
        tables = [queries[number].table for number in numbers]
        target = tables[0].known_shards[owner]
        parts = []
        for number, table in zip(numbers, tables, strict=True):
            shard, mark = table.known_shards[owner], queries[number].routing.marks.get(owner, 0)
            parts.append((None if shard is target else shard, *queries[number].asked[owner].as_sent(table, mark)))
        handle = target if timeout == DEFAULT else target.options(timeout=timeout)
        if repeats:
            handle = handle.options(seed=0)  # which means nothing to tables
        is_plain = all(each.compress is None for each in tables)
        requests.append(handle.call_encoding(None if is_plain else partial(_encoded, tables), "look_up", parts))
    context = current_context() if torch.is_grad_enabled() else None
    noted = None if context is None else context.looked_up
    again = partial(_again, loop, queries, by_owner, context, timeout, repeats + 1)
    return LookingUp(loop, requests, partial(_finish, queries, by_owner, noted, read), again)


def _again(
    loop: asyncio.AbstractEventLoop,
    queries: Sequence[Query],
    asked: Mapping[str, Sequence[int]],
    context: Context | None,
    timeout: float | None,
    repeats: int,
    failed: Mapping[int, BaseException],
) -> Pending[Pending[list[list[torch.Tensor]]]]:
    """Follows rows that have moved away from the owners at some places of those that were asked, and asks for what
    these were asked. Gives what gives their answers. Raises the error of an owner that has rows, but is gone."""
    owners = [list(asked)[place] for place in failed]

    async def follow() -> Pending[list[list[torch.Tensor]]]:
        for owner, error in zip(owners, failed.values(), strict=True):
            for number in asked[owner]:
                if repeats > MOST_REPEATS:
                    raise error
                if isinstance(error, RowsMovedError):
                    await queries[number].table.follow(owner)
                elif not await queries[number].table.follower.has_left(owner):
                    raise error
        parts = [[part_query(queries[number], owner) for number in asked[owner]] for owner in owners]
        with inside(context), torch.set_grad_enabled(context is not None):
            read = partial(_in_parts, [len(each) for each in parts])
            return look_up(loop, list(chain(*parts)), timeout, read, repeats)

    return Pending.run(loop, follow())


def _in_parts(counts: Sequence[int], results: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    each = iter(results)
    return [list(islice(each, count)) for count in counts]


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
