"""A group of torch functions, and the levels at which an owner offers them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ps_service.functions.values import Check


class Level(IntEnum):
    """Which functions an owner offers. Each level includes the levels below it."""

    OFF = 0
    BASIC = 1
    ALL = 2


@dataclass(frozen=True)
class Group:
    """Functions that are safe for the same reason. Lists of names are separated by spaces.

    Attributes:
        title: Name of the group.
        reason: Why a trainer may call them.
        names: The functions, without a namespace. Every namespace that has one of that name offers it.
        level: The lowest level that includes it.
        only: The only namespace that offers them; empty for all.
        operators: The special methods of tensors that belong to the group.
        in_place: Whether methods and functions that end in an underscore are listed too, for floating-point tensors.
        grows: Whether a result can have more elements than the product of those of its arguments.
        checks: A further check of the arguments, by function.
        sparse: The functions of the group that take tensors in COO layout.
    """

    title: str
    reason: str
    names: str
    level: Level = Level.BASIC
    only: str = ""
    operators: str = ""
    in_place: bool = False
    grows: bool = True
    checks: dict[str, Check] = field(default_factory=dict)
    sparse: str = ""
