"""The documentation page that lists the functions; `python -m ps_service.functions` prints it."""

from __future__ import annotations

from collections.abc import Iterator

from ps_service.functions.groups import GROUPS, Group, Level
from ps_service.functions.listing import listed

_HEAD = """\
# Functions of torch by name

This page is written by `python -m ps_service.functions > docs/torch-functions.md`; a test compares it with the code.

Trainers may call the functions below on an owner by name (`ps.call(torch.add, x, 1)`), and the methods below on tensors
that an owner keeps (`rref.rpc_sync().view(3, 2)`). A few functions of Python are among them (`builtins`). No other
function of torch or Python can be called.
`ps-service serve --torch-functions off|basic|all` chooses among them: none, those of the level `basic` (the
default), or also those of the level `all`. A process that calls `init_rpc` offers those of the level `all`.
Functions of your own, marked with `@remote`, are not affected.

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
    """The page, in Markdown."""
    return "\n".join([_HEAD, *_groups(Level.BASIC), *_groups(Level.ALL)])


def _groups(level: Level) -> Iterator[str]:
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
