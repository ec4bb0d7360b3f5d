"""The decorators of hosted classes and functions.

Trainers can create a class if the owner imports its module (`--import`) and it is marked `@hosted`. They can call
`forward` and the methods that are marked `@remote`, and functions marked `@remote` in such modules. The decorators only
set an attribute; they register nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar, get_args, overload

_HOSTED: Final = "__ps_hosted__"
_TURNS: Final = "__ps_turns__"
_REMOTE: Final = "__ps_remote__"
_QUICK: Final = "__ps_quick__"
_DEFERRED: Final = "__ps_deferred__"
_ROLE: Final = "__ps_role__"

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

Role = Literal["", "reader", "trainer", "bulk", "admin", "owner"]
"""What `@remote` may ask callers for; empty for nothing in particular."""


@overload
def hosted(cls: C) -> C: ...


@overload
def hosted(*, turns: bool = False) -> Callable[[C], C]: ...


def hosted(cls: C | None = None, *, turns: bool = False) -> C | Callable[[C], C]:
    """Allows trainers to create instances of this class on owners that import its module.

    Subclasses are not allowed by this; mark each of them.

    Args:
        cls: The class, when the decorator is used without arguments.
        turns: For a module: whether all of its calls take turns, as those do that change something of it. Say so where
            calls change what an owner cannot see, such as a file or memory of a library in C. Modules that contain
            such a module take turns, too, and so do subclasses.
    """

    def mark(cls: C) -> C:
        setattr(cls, _HOSTED, cls)
        if turns:
            setattr(cls, _TURNS, True)
        return cls

    return mark if cls is None else mark(cls)


@overload
def remote(method: F) -> F: ...


@overload
def remote(*, inline: bool = False, role: Role = "") -> Callable[[F], F]: ...


def remote(method: F | None = None, *, inline: bool = False, role: Role = "") -> F | Callable[[F], F]:
    """Allows trainers to call this method of a hosted class, or this function.

    Args:
        method: The method, when the decorator is used without arguments; also a static or class method.
        inline: Whether it may run on the owner's event loop, which saves a small call the hand-over to a thread. It
            must never wait, because the owner serves no other request meanwhile. The time of a module's methods is
            measured, and they run in a thread when they take too long. Methods of other objects must take at most tens
            of microseconds, unless their arguments have more than 64 KiB: such calls are measured, too.
        role: The role that a caller needs on an owner with tokens: `reader`, `trainer`, `bulk`, `admin` or `owner`.
            Without one it is `trainer`, and for `forward` in eval mode and outside of passes `reader`.

    Raises:
        ValueError: There is no such role.
    """
    if role not in get_args(Role):
        raise ValueError(f"there is no role {role!r}; the roles are {', '.join(filter(None, get_args(Role)))}")

    def mark(method: F) -> F:
        function = _function_of(method)
        setattr(function, _REMOTE, True)
        setattr(function, _QUICK, inline)
        setattr(function, _ROLE, role)
        return method

    return mark if method is None else mark(method)


def async_execution(method: F) -> F:
    """Marks a function or method that returns a future: its result is the answer, and no thread waits for it.

    Any future with `add_done_callback` will do: of `torch.futures`, `concurrent.futures` or `trainer_client.rpc`.
    Methods of modules cannot be marked.
    """
    setattr(_function_of(method), _DEFERRED, True)
    return method


def is_hosted(cls: type) -> bool:
    """Whether the class itself is marked `@hosted`; a subclass does not inherit the mark."""
    return getattr(cls, _HOSTED, None) is cls


def takes_turns(cls: type) -> bool:
    """Whether the class, or one that it derives from, is marked `@hosted(turns=True)`."""
    return getattr(cls, _TURNS, False) is True


def is_remote(method: object) -> bool:
    """Whether the function is marked `@remote`."""
    return getattr(method, _REMOTE, False) is True


def is_inline(method: object) -> bool:
    """Whether the function is marked `@remote(inline=True)`."""
    return getattr(method, _QUICK, False) is True


def role_of(method: object) -> str:
    """The role that `@remote(role=…)` asks callers for; empty if it does not."""
    return str(getattr(method, _ROLE, ""))


def is_deferred(method: object) -> bool:
    """Whether the function is marked `@async_execution`."""
    return getattr(method, _DEFERRED, False) is True


def _function_of(method: Any) -> Any:
    return method.__func__ if isinstance(method, (staticmethod, classmethod)) else method
