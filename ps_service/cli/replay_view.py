"""What `ps-service replay` is given, and what it prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from ps_service.durability.point_in_time import ONLY, Moment
from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ps_service.durability.point_in_time import BuiltState


def moment(until: Sequence[str], position: int | None) -> Moment:
    """The moment that was asked for. Raises `InvalidArgumentError` if an option does not have its form."""
    if until and position is not None:
        raise InvalidArgumentError("give --until or --position, and not both")
    versions: dict[str, int] = {}
    for each in until:
        name, equals, version = each.rpartition("=")
        if not version.isdecimal() or (equals and not name):
            raise InvalidArgumentError(f"--until is VERSION or NAME=VERSION, unlike {each!r}")
        if versions.setdefault(name, int(version)) != int(version) or (ONLY in versions and len(until) > 1):
            raise InvalidArgumentError("--until names each optimizer once: give NAME=VERSION for each of several")
    return Moment(versions, position)


def show(built: BuiltState, output: Path) -> None:
    """Prints what was built, and how to go on."""
    console = Console()

    def tell(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    begin = built.checkpoint or "the beginning"
    tell(f"{built.owner} at position {built.position} of its log: {begin} and {built.records:,} records behind it")
    for name, version in sorted(built.versions.items()):
        tell(f"{name} has version {version}")
    if built.left_out:
        tell(f"left out: {built.left_out:,} without a name, of trainers")
    tell(f"start it with: ps-service serve --name {built.owner} --data-dir {output}, with --import as before")
