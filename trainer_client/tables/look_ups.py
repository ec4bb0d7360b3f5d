"""Looks up in one table or several: one request per owner, all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ps_wire.compression.registry import encode
from ps_wire.errors import InvalidArgumentError
from trainer_client.contexts.current import current_context
from trainer_client.pending import DEFAULT
from trainer_client.tables.joined import Joined
from trainer_client.tables.queries import Query, query_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ps_wire.compression.codec import Encoded
    from trainer_client.contexts.closing import Part
    from trainer_client.pending import Pending
    from trainer_client.tables.contents import TableContents

K = TypeVar("K", bound="TableContents")
T = TypeVar("T")


def look_up(
    loop: asyncio.AbstractEventLoop,
    queries: Sequence[Query],
    timeout: float | None,
    read: Callable[[list[torch.Tensor]], T],
) -> Pending[T]:
    """Asks the owners of some tables, each with one request. Inside a context the calls are recorded.

    `read` makes the result from those of the queries, in the thread that reads it.
    """
    by_owner: dict[str, list[int]] = {}
    for number, query in enumerate(queries):
        for owner in query.asked:
            by_owner.setdefault(owner, []).append(number)
    requests = []
    for owner, numbers in by_owner.items():
        target = queries[numbers[0]].table.shards[owner]
        parts = []
        for number in numbers:
            shard = queries[number].table.shards[owner]
            parts.append(
                (None if shard is target else shard, *queries[number].asked[owner].as_sent(queries[number].table))
            )
        handle = target if timeout == DEFAULT else target.options(timeout=timeout)
        tables = [queries[number].table for number in numbers]
        is_plain = all(each.compress is None for each in tables)
        requests.append(handle.call_encoding(None if is_plain else partial(_encoded, tables), "look_up", parts))
    context = current_context() if torch.is_grad_enabled() else None
    noted = None if context is None else context.looked_up
    return Joined(loop, requests, partial(_finish, queries, by_owner, noted, read))


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
    """What `read` makes of the results of queries.

    `noted` gets the tables that their pass may train, if it has recorded the look-up.
    """
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


def look_up_all(
    loop: asyncio.AbstractEventLoop, wanted: Mapping[K, Any], timeout: float | None
) -> Pending[dict[K, torch.Tensor]]:
    """Looks up in several tables; arguments and errors as for `Client.look_up`."""
    if not wanted:
        raise InvalidArgumentError("look_up() needs at least one table")
    queries = [query_of(table, what) for table, what in wanted.items()]
    return look_up(loop, queries, timeout, partial(_by_table, list(wanted)))


def _by_table(tables: Sequence[K], results: list[torch.Tensor]) -> dict[K, torch.Tensor]:
    return dict(zip(tables, results, strict=True))
