"""The roles of callers, as bits, so that a request is checked with one operation on numbers.

An operation needs one of them. What a caller has is the sum of all that its roles include.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable

NOBODY: Final = 0
"""Needed where anybody may ask, also without a token."""

READER: Final = 1
"""Looks up objects and rows, and runs forward passes without gradients."""

TRAINER: Final = 2
"""Makes objects, and trains them: passes, steps, updates of rows."""

BULK: Final = 4
"""Reads whole states: of modules, optimizers and tables, and of replicas."""

ADMIN: Final = 8
"""Deletes, loads states and policies, writes checkpoints, moves rows, and ends sessions and passes of others."""

OWNER: Final = 16
"""Is a member of the group, and keeps its directory."""

KNOWN: Final = 32
"""Has everybody who has shown who it is, also without a role in the namespace that it asks for."""

ALL: Final = -1
"""What everybody has on an owner without tokens."""

ROLES: Final = {
    "reader": READER,
    "trainer": READER | TRAINER,
    "bulk": READER | BULK,
    "admin": READER | TRAINER | BULK | ADMIN,
    "owner": READER | TRAINER | BULK | ADMIN | OWNER,
}
"""What each role includes, by its name."""

NAMES: Final = {KNOWN: "any", READER: "reader", TRAINER: "trainer", BULK: "bulk", ADMIN: "admin", OWNER: "owner"}
"""The name of the role that gives each bit."""


def rights_of(roles: Iterable[str]) -> int:
    """All that some roles include. Raises `InvalidArgumentError` if one is none."""
    found = KNOWN
    for each in roles:
        if each not in ROLES:
            raise InvalidArgumentError(f"there is no role {each!r}; the roles are {', '.join(ROLES)}")
        found |= ROLES[each]
    return found


def named(rights: int) -> str:
    """The names of the largest roles that give these rights, for messages."""
    found = [name for name, bits in ROLES.items() if rights & bits == bits]
    largest = [each for each in found if not any(_includes(other, each) for other in found)]
    return " and ".join(largest) or "no role"


def _includes(role: str, other: str) -> bool:
    return role != other and ROLES[role] & ROLES[other] == ROLES[other]
