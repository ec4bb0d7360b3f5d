"""A table over the checkpoints of its owners, and what these know of it together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_service.durability import value_files
from ps_service.durability.store import CheckpointError
from ps_service.tables.applied_steps import added, from_plain
from ps_wire.codec.payload import PayloadReader
from ps_wire.codec.values import Decoder
from ps_wire.tables import names
from ps_wire.tables.routing import Routing

if TYPE_CHECKING:
    from ps_service.durability.resharding.source import Source
    from ps_service.tables.applied_steps import Applied
    from ps_service.tables.shard import Block
    from ps_wire.v1 import checkpoint_pb2 as pb

IDS: Final = "ids"
"""The column of a block by which its rows are moved. All other columns go with it, whatever their names."""

IN_USE: Final = "in_use"
"""The column that says which places of a block have a row; a block without it has one in each."""


Columns = dict[str, Callable[[], torch.Tensor]]
"""Functions that read the columns of a block, by name."""


@dataclass
class Part:
    """The rows of a table in one checkpoint."""

    source: Source
    record: pb.ObjectRecord

    def state(self) -> dict[str, Any]:
        """Its state, with an iterator of its blocks."""
        return value_files.load_table(self.record.state, self.record.tensors, self.source.tensors)

    def blocks(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, Columns]]:
        """For each block the ids of its rows, int64 [n], their places in it, int64 [n], and its columns."""
        for columns in value_files.table_columns(self.record.state, self.record.tensors, self.source.tensors):
            ids, in_use = columns[IDS](), columns.pop(IN_USE, None)
            places = torch.arange(len(ids)) if in_use is None else in_use().nonzero().view(-1)
            yield ids[places], places, columns


@dataclass
class SplitTable:
    """A table, as the checkpoints of all of its owners have it. Parts are in the order of the owners in its routing.

    `settings` is what it was made with, `slots` are those of each owner, as far as it knew, `applied` the steps that
    owners had applied to some of its rows, and `rest` is its state beside rows and routing, merged.
    """

    name: str
    parts: Sequence[Part]
    settings: dict[str, Any]
    routing: Routing
    slots: Mapping[str, torch.Tensor]
    applied: Applied
    rest: dict[str, Any] = field(default_factory=dict)

    def count(self, after: Routing) -> Counter[str]:
        """The number of rows that each owner will have."""
        counts: Counter[str] = Counter(dict.fromkeys(after.owners, 0))
        for place, part in enumerate(self.parts):
            for ids, _, _ in part.blocks():
                own = self.routing.owner_of(ids) == place
                if len(ids) and self.routing.moves is None and not bool(own.all()):
                    raise CheckpointError(f"{part.source.folder} has rows of table {self.name!r} of another owner")
                ids = ids[own]  # others have moved, and were not removed yet
                found = torch.bincount(after.owner_of(ids), minlength=len(after.owners)).tolist()
                counts.update(dict(zip(after.owners, found, strict=True)))
        return counts

    def rows_of(self, after: Routing, owner: str, most: int) -> Iterator[Block]:
        """The rows of one owner, in the order of the checkpoints, in blocks of at most `most` rows."""
        position = after.owners.index(owner)
        waiting: dict[str, list[torch.Tensor]] = {}
        held = 0
        for place, part in enumerate(self.parts):
            for ids, places, columns in part.blocks():
                own = self.routing.owner_of(ids) == place
                chosen = places[own & (after.owner_of(ids) == position)]
                if held and held + len(chosen) > most:
                    yield _joined(waiting)
                    held = 0
                if len(chosen):
                    held += len(chosen)
                    for name, read in columns.items():
                        waiting.setdefault(name, []).append(read().index_select(0, chosen))
        if held:
            yield _joined(waiting)


def _joined(parts: dict[str, list[torch.Tensor]]) -> Block:
    """A block of these parts, which are taken out column by column, so that memory holds one column twice at most."""
    return {name: torch.cat(parts.pop(name)) for name in list(parts)}


def tables_in(sources: Mapping[str, Source]) -> list[SplitTable]:
    """The tables in the checkpoints of all owners, by name of the owner."""
    found: dict[str, dict[str, Part]] = {}
    for owner, source in sources.items():
        for record in source.checkpoint.objects:
            if record.class_name == names.SHARD:
                found.setdefault(record.name, {})[owner] = Part(source, record)
    return [_whole(name, parts, sources) for name, parts in sorted(found.items())]


def _whole(name: str, parts: Mapping[str, Part], sources: Mapping[str, Source]) -> SplitTable:
    states = {owner: part.state() for owner, part in parts.items()}
    for state in states.values():
        state.pop(value_files.BLOCKS)
        state.pop("feed", None)  # it is of the rows of one owner: who follows the table reads all rows anew
    ownerships = {owner: state.pop("routing") for owner, state in states.items()}
    routings = {owner: Routing.from_plain(each) for owner, each in ownerships.items()}
    # Without slots that another owner has given away to it, and it has not heard of: it has applied nothing to these.
    slots = {owner: each.slots(owner) for owner, each in routings.items()}
    applied = reduce(added, (from_plain(each.get("applied", ())) for each in ownerships.values()))
    settings = {owner: Decoder(PayloadReader(None)).decode(part.record.create.kwargs) for owner, part in parts.items()}
    first = next(iter(parts))
    routing = reduce(Routing.merged, routings.values())
    if routing.moves is not None:
        # Owners that have no rows any more keep what the table was there, and some may not have heard of the last move.
        parts = {owner: part for owner, part in parts.items() if owner in routing.owners}
        routings = dict.fromkeys(parts, routing)
        first = next(iter(parts))
    if missing := [owner for owner in routing.owners if owner not in sources]:
        raise CheckpointError(
            f"table {name!r} has rows on {' and '.join(missing)}, too: give the data directories of all of its owners"
        )
    for owner in routing.owners:
        if owner not in parts:
            raise different_moments(f"{sources[owner].folder} does not have the table {name!r}")
        if not same(routings[owner].to_plain(), routing.to_plain()) or not same(settings[owner], settings[first]):
            raise different_moments(f"{first} and {owner} do not agree on what the table {name!r} is")
    if strange := parts.keys() - set(routing.owners):
        raise different_moments(f"table {name!r} is not on {' and '.join(sorted(strange))}, which has rows of it")
    ordered = [parts[owner] for owner in routing.owners]
    rest = merged([states[owner] for owner in routing.owners])
    return SplitTable(name, ordered, settings[first], routing, slots, applied, rest)


def same(one: Any, other: Any) -> bool:
    """Whether two plain values are equal, tensors included."""
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def merged(values: Sequence[Any]) -> Any:
    """One value in place of those that several owners had: of numbers the largest, and of tensors each largest element.

    What tables count beside their rows are upper bounds, such as the sightings of ids in a counting filter.
    """
    first = values[0]
    if all(same(first, each) for each in values[1:]):
        return first
    if all(isinstance(each, dict) and each.keys() == first.keys() for each in values):
        return {key: merged([each[key] for each in values]) for key in first}
    if all(isinstance(each, torch.Tensor) and each.shape == first.shape for each in values):
        return reduce(torch.maximum, values)
    if all(isinstance(each, int | float) for each in values):
        return max(values)
    raise CheckpointError("the owners of a table keep what cannot be put together; restore into as many owners")


def different_moments(told: str) -> CheckpointError:
    """The error about checkpoints that do not belong together."""
    return CheckpointError(
        f"these checkpoints are of different moments: {told}. Give those that all owners have written when they were "
        "stopped together"
    )
