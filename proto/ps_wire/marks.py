"""Marks: what a hosted class says of itself.

A class is hosted only if its module was named to the owner (`--import`) and it wears `@hosted`; of its methods only
`forward` and those that wear `@remote` can be called. The marks are plain attributes: they register nothing anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, overload

_HOSTED: Final = "__ps_hosted__"
_REMOTE: Final = "__ps_remote__"
_QUICK: Final = "__ps_quick__"

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])


def hosted(cls: C) -> C:
    """Allows trainers to create instances of this class on owners that import its module."""
    setattr(cls, _HOSTED, cls)
    return cls


@overload
def remote(method: F) -> F: ...


@overload
def remote(*, quick: bool = False) -> Callable[[F], F]: ...


def remote(method: F | None = None, *, quick: bool = False) -> F | Callable[[F], F]:
    """Allows trainers to call this method of a hosted class.

    Args:
        method: The method, when the decorator is used without arguments.
        quick: Promises that the method never waits and takes no longer than some ten microseconds. It then runs on the
            owner's event loop, which spares a small call the hop to a thread; while it runs, nobody else is served.
    """

    def mark(method: F) -> F:
        setattr(method, _REMOTE, True)
        setattr(method, _QUICK, quick)
        return method

    return mark if method is None else mark(method)


def is_hosted(cls: type) -> bool:
    """Whether this very class wears the mark; a subclass does not inherit it."""
    return getattr(cls, _HOSTED, None) is cls


def is_remote(method: object) -> bool:
    """Whether trainers may call this function."""
    return getattr(method, _REMOTE, False) is True


def is_quick(method: object) -> bool:
    """Whether this function is promised to be quick enough for the owner's event loop."""
    return getattr(method, _QUICK, False) is True


def name_of(cls: type | str) -> str:
    """The name under which a class is asked for."""
    return cls if isinstance(cls, str) else f"{cls.__module__}.{cls.__qualname__}"
