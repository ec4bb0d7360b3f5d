"""Look-ups in one table or several: what each owner is asked, with one request, and how answers are put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch

from ps_wire.close_names import hint
from ps_wire.compression.registry import encode
from ps_wire.errors import InvalidArgumentError, RowsMovedError
from ps_wire.tables.queries import Query, bags_query, part_query, rows_query
from trainer_client.contexts.current import current_context
from trainer_client.graph.current import inside
from trainer_client.pending import DEFAULT, Pending
from trainer_client.tables.following import MOST_REPEATS
from trainer_client.tables.redirected import LookingUp

if TYPE_CHECKING:
    import asyncio

    from ps_wire.compression.codec import Encoded
    from trainer_client.contexts.closing import Part
    from trainer_client.contexts.context import Context
    from trainer_client.tables.contents import TableContents

T = TypeVar("T")

_BAG: Final = ("ids", "offsets", "mode", "per_sample_weights", "include_last_offset", "padding_idx")
"""The arguments of `Table.bag` that say what is looked up."""


def query_of(table: TableContents, what: Any) -> Query[TableContents]:
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


def look_up(
    loop: asyncio.AbstractEventLoop,
    queries: Sequence[Query[TableContents]],
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
    queries: Sequence[Query[TableContents]],
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
    queries: Sequence[Query[TableContents]],
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
                noted[query.table.name] = query.table.parts
    return read(results)
