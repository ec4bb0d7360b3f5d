"""What an attack is, and the list of all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.attack.scene import Scene

Run = Callable[["Scene"], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack.

    Attributes:
        name: The name of its function.
        tries: What the attacker tries.
        holds: What has to hold.
        run: Tries it, and raises `Broken` if it does not hold.
        quick: Whether it is part of the tests of the project.
        tls: Whether the owner asks for certificates.
    """

    name: str
    tries: str
    holds: str
    run: Run = field(repr=False)
    quick: bool
    tls: bool


ATTACKS: Final[dict[str, Attack]] = {}
"""All attacks, by their names."""


class Broken(Exception):
    """An attack does not hold."""


class Skipped(Exception):
    """An attack cannot be tried on this machine."""


def attack(tries: str, holds: str, *, quick: bool = False, tls: bool = False) -> Callable[[Run], Run]:
    """Puts a function into the list."""

    def listed(run: Run) -> Run:
        name = run.__name__
        assert name not in ATTACKS, name
        ATTACKS[name] = Attack(name, tries, holds, run, quick, tls)
        return run

    return listed
