"""The listing: which functions of torch trainers may call by name, in groups, each with the reason why it may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import Any, Final

import torch
from torch.nn import functional

NAMESPACES: Final[tuple[tuple[str, Any], ...]] = (
    ("torch", torch),
    ("torch.functional", torch.functional),
    ("torch.nn.functional", functional),
    ("torch.Tensor", torch.Tensor),
)


class Level(IntEnum):
    """How many functions an owner offers. Each level has those of the levels below it."""

    OFF = 0
    BASIC = 1
    ALL = 2


@dataclass(frozen=True)
class Group:
    """Functions that are safe for the same reason.

    Attributes:
        title: What the group is called.
        level: From which level on an owner offers it.
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


@dataclass(frozen=True)
class Listed:
    """One function on the list.

    Attributes:
        name: Its full name, such as `torch.nn.functional.relu`.
        short: The name without its namespace and without the underscore of an in-place function.
        function: The function itself.
        group: Where it belongs.
        writes: Whether it writes to its first argument.
    """

    name: str
    short: str
    function: Callable[..., Any]
    group: Group
    writes: bool = False

    @property
    def check(self) -> str:
        """Name of its further check; empty if it has none."""
        return self.group.checks.get(self.short, "")

    @property
    def takes_sparse(self) -> bool:
        """Whether its arguments may be in COO layout."""
        return self.short in self.group.sparse


_WRITING: Final = frozenset({"__iadd__", "__isub__", "__imul__", "__itruediv__"})


@cache
def listed(level: Level) -> dict[str, Listed]:
    """All functions of a level and of those below, by full name."""
    from ps_service.functions.groups import GROUPS

    found: dict[str, Listed] = {}
    for group in GROUPS:
        if group.level <= level:
            for each in _members(group):
                if each.name in found:
                    raise ValueError(f"{each.name} is listed twice")
                found[each.name] = each
    return found


def _members(group: Group) -> Iterator[Listed]:
    for prefix, namespace in NAMESPACES:
        if group.only and prefix != group.only:
            continue
        for name in group.names:
            function = _function(namespace, prefix, name)
            if function is not None:
                yield Listed(f"{prefix}.{name}", name, function, group)
            writing = _function(namespace, prefix, f"{name}_") if group.in_place else None
            if writing is not None:
                yield Listed(f"{prefix}.{name}_", name, writing, group, writes=True)
        if prefix == "torch.Tensor":
            for name in group.operators:
                yield Listed(f"{prefix}.{name}", name, getattr(torch.Tensor, name), group, name in _WRITING)


def _function(namespace: Any, prefix: str, name: str) -> Callable[..., Any] | None:
    if prefix == "torch.functional" and name not in torch.functional.__all__:
        return None
    function = getattr(namespace, name, None)
    # `torch.nn.functional` imports names of others.
    if not callable(function) or isinstance(function, type):
        return None
    if prefix == "torch.nn.functional" and name in _NOT_OF_FUNCTIONAL:
        return None
    return function  # type: ignore[no-any-return]


_NOT_OF_FUNCTIONAL: Final = frozenset({"reduce", "boolean_dispatch", "handle_torch_function"})
