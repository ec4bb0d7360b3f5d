"""Reads rows of a table for those who serve them: nothing is trained, added or counted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ps_wire.errors import InvalidArgumentError, PsError, RowsMovedError
from ps_wire.tables.bags import checked_ids
from ps_wire.tables.versions import RowsVersion
from trainer_client.pending import Pending
from trainer_client.tables.following import MOST_REPEATS

if TYPE_CHECKING:
    from ps_wire.tables.routing import Routing
    from trainer_client.tables.contents import TableContents


@dataclass(frozen=True, slots=True)
class RowsRead:
    """Rows as they were at one moment of each owner.

    Attributes:
        values: [*ids.shape, dim], in the dtype of the table; the default where there is no row.
        found: Which ids have a row, bool in the shape of the ids.
        versions: By owner the version that its rows are of; only of owners that were asked.
    """

    values: torch.Tensor
    found: torch.Tensor
    versions: Mapping[str, RowsVersion]


class HasRows(Protocol):
    """What rows belong to."""

    name: str
    dim: int
    dtype: torch.dtype


def read(
    loop: asyncio.AbstractEventLoop, table: TableContents, ids: torch.Tensor, default: Any, timeout: float | None
) -> Pending[RowsRead]:
    """Reads rows; arguments and errors as for `Table.read`."""
    checked = checked_ids(ids, table.rows, table.name)
    row = default_row(table, default)

    async def reading() -> RowsRead:
        distinct, positions = torch.unique(checked.reshape(-1), return_inverse=True)
        values, found, versions = await _read(table, distinct, row, timeout)
        shape = checked.shape
        return RowsRead(values[positions].view(*shape, table.dim), found[positions].view(shape), versions)

    return Pending.run(loop, reading())


def default_row(table: HasRows, default: Any) -> torch.Tensor:
    """The row of ids that have none."""
    if isinstance(default, torch.Tensor):
        if default.shape != (table.dim,) or not default.is_floating_point():
            raise InvalidArgumentError(
                f"the default for rows of table {table.name!r} is a number, or floating point numbers [{table.dim}], "
                f"not a tensor {tuple(default.shape)} of {default.dtype}"
            )
        return default.detach().to("cpu", table.dtype)
    if isinstance(default, bool) or not isinstance(default, int | float):
        raise InvalidArgumentError(
            f"the default for rows of table {table.name!r} is a number or a row, not {default!r}"
        )
    return torch.full((table.dim,), float(default), dtype=table.dtype, device="cpu")


async def _read(
    table: TableContents, ids: torch.Tensor, row: torch.Tensor, timeout: float | None
) -> tuple[torch.Tensor, torch.Tensor, dict[str, RowsVersion]]:
    """The rows of different ids, which have one, and of which versions they are."""
    values, found = row.repeat(len(ids), 1), torch.zeros(len(ids), dtype=torch.bool, device="cpu")
    versions: dict[str, RowsVersion] = {}
    answered: dict[str, torch.Tensor] = {}
    left = torch.arange(len(ids), device="cpu")
    for repeat in range(MOST_REPEATS + 1):
        routing = table.routing
        parts = _parts(routing, ids, left, answered)
        asked = [
            table.follower.call(owner, "read", ids[where], *table.follower.mark(owner, routing), timeout=timeout)
            for owner, where in parts.items()
        ]
        moved = []
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for (owner, where), answer in zip(parts.items(), answers, strict=True):
            if isinstance(answer, BaseException):
                if repeat == MOST_REPEATS or not await _has_moved(table, owner, answer):
                    raise answer
                moved.append(where)
            else:
                rows, there, version = answer
                found[where], values[where] = there, row
                values[where[there]] = rows
                answered[owner], versions[owner] = where, RowsVersion(*version)
        if not moved:
            break
        left = torch.cat(moved)
    return values, found, {owner: versions[owner] for owner in answered}


def _parts(
    routing: Routing, ids: torch.Tensor, left: torch.Tensor, answered: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The positions in ids that each owner is asked for, of those that are left. One that has answered is asked for all
    of its ids again, so that they are of one moment, and is not among the `answered` any more."""
    while True:
        parts = by_owner(routing.owners, routing.owner_of(ids[left]), left)
        again = [answered.pop(owner) for owner in parts if owner in answered]
        if not again:
            return parts
        left = torch.cat([left, *again])


def by_owner(owners: tuple[str, ...], owner_of: torch.Tensor, positions: torch.Tensor) -> dict[str, torch.Tensor]:
    """The positions of each owner that has some, from the number of the owner at each."""
    if len(owners) == 1:
        return {owners[0]: positions} if len(positions) else {}
    chosen = {owner: positions[owner_of == number] for number, owner in enumerate(owners)}
    return {owner: where for owner, where in chosen.items() if len(where)}


async def _has_moved(table: TableContents, owner: str, error: BaseException) -> bool:
    """Whether an owner has answered so because rows are at another one now, which the table knows then."""
    if isinstance(error, RowsMovedError):
        await table.follow(owner)
        return True
    return isinstance(error, PsError) and await table.follower.has_left(owner)
