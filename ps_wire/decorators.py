"""The decorators of hosted classes and functions.

A class is hosted only if its module was named to the owner (`--import`) and it is decorated with `@hosted`. Of its
methods only `forward` and those decorated with `@remote` can be called. A function can be called if its module was
named and it is decorated with `@remote`. The decorators set plain attributes: they register nothing anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, overload

_HOSTED: Final = "__ps_hosted__"
_REMOTE: Final = "__ps_remote__"
_QUICK: Final = "__ps_quick__"
_DEFERRED: Final = "__ps_deferred__"

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])


def hosted(cls: C) -> C:
    """Allows trainers to create instances of this class on owners that import its module."""
    setattr(cls, _HOSTED, cls)
    return cls


@overload
def remote(method: F) -> F: ...


@overload
def remote(*, inline: bool = False) -> Callable[[F], F]: ...


def remote(method: F | None = None, *, inline: bool = False) -> F | Callable[[F], F]:
    """Allows trainers to call this method of a hosted class, or this function.

    Args:
        method: The method, when the decorator is used without arguments; also a static or class method.
        inline: Promises that the method never waits and takes no longer than some ten microseconds. It then runs on the
            owner's event loop, which spares a small call the hop to a thread; while it runs, nobody else is served.
    """

    def mark(method: F) -> F:
        function = _function_of(method)
        setattr(function, _REMOTE, True)
        setattr(function, _QUICK, inline)
        return method

    return mark if method is None else mark(method)


def async_execution(method: F) -> F:
    """Says that a function or method returns a future, whose result is the answer: nothing waits until it is there.

    Any future with `add_done_callback` will do: of `torch.futures`, of `concurrent.futures`, or of our own.
    """
    setattr(_function_of(method), _DEFERRED, True)
    return method


def is_hosted(cls: type) -> bool:
    """Whether this very class wears the mark; a subclass does not inherit it."""
    return getattr(cls, _HOSTED, None) is cls


def is_remote(method: object) -> bool:
    """Whether trainers may call this function."""
    return getattr(method, _REMOTE, False) is True


def is_inline(method: object) -> bool:
    """Whether this function is promised to be quick enough for the owner's event loop."""
    return getattr(method, _QUICK, False) is True


def is_deferred(method: object) -> bool:
    """Whether what this function returns is a future of its result."""
    return getattr(method, _DEFERRED, False) is True


def _function_of(method: Any) -> Any:
    return method.__func__ if isinstance(method, (staticmethod, classmethod)) else method
