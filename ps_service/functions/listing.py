"""The list of functions of torch and Python that trainers may call by name, built from the groups."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn import functional

from ps_service.functions.groups import GROUPS, Group, Level

if TYPE_CHECKING:
    from ps_service.functions.values import Check

NAMESPACES: Final[tuple[tuple[str, Any], ...]] = (
    ("torch", torch),
    ("torch.functional", torch.functional),
    ("torch.nn.functional", functional),
    ("torch.linalg", torch.linalg),
    ("torch.Tensor", torch.Tensor),
    ("builtins", builtins),
)

_ONLY_ASKED: Final = frozenset({"torch.linalg", "builtins"})
"""Namespaces whose functions are listed by groups that name them: other functions there have the same names."""


@dataclass(frozen=True)
class Listed:
    """One function on the list, with its full name, such as `torch.nn.functional.relu`, and the group that lists it.

    The short name is without the namespace, and without the underscore of an in-place function. `writes` says that it
    writes to its first argument.
    """

    name: str
    short: str
    function: Callable[..., Any]
    group: Group
    writes: bool = False

    @property
    def check(self) -> Check | None:
        """Its further check, if it has one."""
        return self.group.checks.get(self.short)

    @property
    def takes_sparse(self) -> bool:
        """Whether its arguments may be in COO layout."""
        return self.short in self.group.sparse.split()


_WRITING: Final = frozenset({"__iadd__", "__isub__", "__imul__", "__itruediv__"})


@cache
def listed(level: Level) -> dict[str, Listed]:
    """All functions of a level and of those below, by full name."""
    found: dict[str, Listed] = {}
    for each in (each for group in GROUPS if group.level <= level for each in _members(group)):
        if each.name in found:
            raise ValueError(f"{each.name} is listed twice")
        found[each.name] = each
    return found


def _members(group: Group) -> Iterator[Listed]:
    for prefix, namespace in NAMESPACES:
        if prefix != group.only and (group.only or prefix in _ONLY_ASKED):
            continue
        for name in group.names.split():
            function = _function(namespace, name)
            if function is not None:
                yield Listed(f"{prefix}.{name}", name, function, group)
            writing = _function(namespace, f"{name}_") if group.in_place else None
            if writing is not None:
                yield Listed(f"{prefix}.{name}_", name, writing, group, writes=True)
        if prefix == "torch.Tensor":
            for name in group.operators.split():
                yield Listed(f"{prefix}.{name}", name, getattr(torch.Tensor, name), group, name in _WRITING)


def _function(namespace: Any, name: str) -> Callable[..., Any] | None:
    """The function of a namespace; None if it has none, or only holds it because its code uses it."""
    if namespace is torch.functional and name not in torch.functional.__all__:
        return None
    function = getattr(namespace, name, None)
    return function if callable(function) and not isinstance(function, type) else None
