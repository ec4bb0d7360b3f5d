"""Which owner gets what."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ps_service.durability.store import CheckpointError
from ps_wire.tables.routing import Routing

if TYPE_CHECKING:
    from ps_service.durability.resharding.source import Objects
    from ps_service.durability.resharding.split_table import SplitTable

_NUMBERED = re.compile(r"(.*?)(\d+)")


@dataclass(frozen=True)
class Wanted:
    """What was asked for: names of the new owners, or how many there are to be, and the owners of tables by name.

    `homes` has, by the name of an owner before, the owner that gets its objects that are no tables.
    """

    owners: tuple[str, ...] | int
    homes: Mapping[str, str]
    tables: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Placement:
    """Which of the new owners gets what: the rows of each table, by `routings`, and what an owner before had besides.

    `homes` lacks an owner of which nothing is to go anywhere.
    """

    owners: tuple[str, ...]
    homes: Mapping[str, str]
    routings: Mapping[str, Routing]


def place(wanted: Wanted, objects: Mapping[str, Objects], tables: Sequence[SplitTable]) -> Placement:
    """Places what several owners had; `objects` are by name of the owner.

    A table of all owners goes to all new ones. A table of some of them stays with these, if they all remain. Other
    objects stay with the owner of the same name, unless they are given another home.
    """
    before = tuple(objects)
    owners = named(wanted.owners, before)
    _known("--objects", wanted.homes, before)
    _known("--table", wanted.tables, [table.name for table in tables])
    for option, given in (("--objects", wanted.homes.values()), ("--table", chain(*wanted.tables.values()))):
        if strange := set(given) - set(owners):
            raise CheckpointError(
                f"{option} names {' and '.join(sorted(strange))}; the new owners are {', '.join(owners)}"
            )
    homes = _homes(wanted, objects, owners)
    _check_names(homes, objects)
    routings = {}
    for table in tables:
        own = table.routing.owners
        stays = len(own) < len(before) and set(own) <= set(owners)
        chosen = wanted.tables.get(table.name, own if stays else owners)
        routings[table.name] = Routing.even(chosen)._replace(version=table.routing.version + 1)
    return Placement(owners, homes, routings)


def named(owners: tuple[str, ...] | int, before: Sequence[str]) -> tuple[str, ...]:
    """The names of the new owners: for a number, those from before, and then the next numbers."""
    if not isinstance(owners, int):
        if not owners or len(set(owners)) < len(owners):
            raise CheckpointError(f"the new owners have different names, not {', '.join(owners)}")
        for name in owners:
            # Their data directories have these names.
            if name in ("", ".", "..") or Path(name).name != name:
                raise CheckpointError(f"{name!r} is no name of an owner: its data directory would not be in --to")
        return tuple(sorted(owners))
    if owners < 1:
        raise CheckpointError("there is at least one owner")
    parts = [match for name in before if (match := _NUMBERED.fullmatch(name))]
    if len(parts) == len(before) and len({match[1] for match in parts}) == 1:
        numbers = sorted(int(match[2]) for match in parts)
        numbers += range(numbers[-1] + 1, numbers[-1] + 1 + max(0, owners - len(numbers)))
        return tuple(sorted(f"{parts[0][1]}{number}" for number in numbers[:owners]))
    if owners > len(before):
        raise CheckpointError(f"{', '.join(before)} are no names with numbers: name the new owners, --owners a,b,c")
    return tuple(sorted(before)[:owners])


def _known(option: str, given: Mapping[str, object], there: Sequence[str]) -> None:
    if strange := given.keys() - set(there):
        raise CheckpointError(f"{option} names {' and '.join(sorted(strange))}; there are {', '.join(there) or 'none'}")


def _homes(wanted: Wanted, objects: Mapping[str, Objects], owners: Sequence[str]) -> dict[str, str]:
    homes = {}
    for owner, own in objects.items():
        home = wanted.homes.get(owner, owner)
        if home in owners:
            homes[owner] = home
        elif own.others:
            raise CheckpointError(
                f"owner {owner!r} goes, and has {', '.join(own.named)}: say who gets that, --objects {owner}=NAME"
            )
    return homes


def _check_names(homes: Mapping[str, str], objects: Mapping[str, Objects]) -> None:
    taken: dict[tuple[str, str], str] = {}
    for owner, home in homes.items():
        for name in objects[owner].named:
            if (other := taken.setdefault((home, name), owner)) != owner:
                raise CheckpointError(
                    f"{other!r} and {owner!r} both have an object {name!r}, and {home!r} can have one of that name: "
                    "give them different homes with --objects"
                )
