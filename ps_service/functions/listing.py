"""The list of functions of torch and Python that trainers may call by name, built from the groups, and its page."""

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
    from ps_service.functions.arguments import Check

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
    The short name is without the namespace, and without the underscore of an in-place function, which `writes` to its
    first argument."""

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


_HEAD: Final = """\
# Functions of torch by name

Trainers may call the functions below on an owner by name (`ps.call(torch.add, x, 1)`), and the methods below on tensors
that an owner keeps (`rref.rpc_sync().view(3, 2)`). A few functions of Python are among them (`builtins`). No other
function of torch or Python can be called.
`ps-service serve --torch-functions off|basic|all` chooses among them: none, those of the level `basic` (the
default), or also those of the level `all`. A process that calls `init_rpc` offers those of the level `all`.
Functions of your own, marked with `@remote`, are not affected.

This page is written by `python -m ps_service.functions > docs/torch-functions.md`; a test compares it with the code.

What holds for all of them:

- Tensors are dense, of a floating-point, complex, integer or boolean dtype, on the owner's device. Where a function
  takes tensors in COO layout, every index is checked against the shape first. `out=` and other devices are refused.
- Every torch operation inside a function is checked before it runs: the size of its result is computed and compared
  with `max_result_bytes`, its indices with the range they index, its integer divisors with 0.
- Lists and strings among the arguments have a bounded length, and `tolist()` makes at most 65,536 numbers.
- Methods that write in place (`add_`) write to floating-point tensors only, and not to results
  that an open pass will propagate through.
- No function here loads or saves files, changes process-wide state, sets or seeds a generator, or compiles.

Torch layers that trainers create run under the same checks, except where their settings and the size of their input
prove a call harmless. They are created under a budget: a module that would need more than `max_object_bytes` is
refused before its memory is taken.
"""


def page() -> str:
    """The page of the documentation that lists the functions, in Markdown."""
    return "\n".join([_HEAD, *_sections(Level.BASIC), *_sections(Level.ALL)])


def _sections(level: Level) -> Iterator[str]:
    yield f"## Level `{level.name.lower()}`\n"
    for group in GROUPS:
        if group.level is level:
            yield f"### {group.title[0].upper()}{group.title[1:]}\n\n{group.reason}\n\n{_names(group)}\n"


def _names(group: Group) -> str:
    shown: dict[str, list[str]] = {}
    for name, entry in listed(Level.ALL).items():
        if entry.group is group:
            prefix, _, short = name.rpartition(".")
            shown.setdefault(prefix, []).append(f"`{short}`" + (" (also COO)" if entry.takes_sparse else ""))
    return "\n".join(f"- `{prefix}`: {', '.join(sorted(names))}" for prefix, names in shown.items())
