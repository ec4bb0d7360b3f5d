"""Groups of torch functions, and the levels at which an owner offers them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class Level(IntEnum):
    """Which functions an owner offers. Each level includes the levels below it."""

    OFF = 0
    BASIC = 1
    ALL = 2


@dataclass(frozen=True)
class Group:
    """Functions that are safe for the same reason.

    Attributes:
        title: Name of the group.
        level: The lowest level that includes it.
        reason: Why a trainer may call them.
        names: The functions, without a namespace. Every namespace that has one of that name offers it.
        in_place: Whether methods and functions that end in an underscore are listed too, for floating-point tensors.
        operators: The special methods of tensors that belong to the group.
        grows: Whether a result can have more elements than the product of those of its arguments.
        checks: A further check of the arguments, by function: a name in `ps_service.functions.arguments.CHECKS`.
        sparse: The functions of the group that take tensors in COO layout.
        only: The only namespace that offers them; empty for all.
    """

    title: str
    level: Level
    reason: str
    names: tuple[str, ...]
    in_place: bool = False
    operators: tuple[str, ...] = ()
    grows: bool = True
    checks: dict[str, str] = field(default_factory=dict)
    sparse: frozenset[str] = frozenset()
    only: str = ""
