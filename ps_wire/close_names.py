"""Names that are close to one that does not exist, for messages: "did you mean 'tower'?"."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final, TypeVar

T = TypeVar("T")

_MOST_NAMES: Final = 10_000
"""Most names that are looked at."""

_MOST_COMPARED: Final = 64
_MOST_LETTERS: Final = 1 << 16
"""Most names that are compared letter by letter, and most pairs of letters, about: 0.1 microseconds each at worst."""

_LONGEST: Final = 128
"""Longest name, in characters, for which close ones are looked for, so that messages stay short."""


def hint(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'tower'?`, with the closest of some names, to be put behind a message; empty if none is close.

    It takes some ten milliseconds at most, also with names that were chosen to make it slow. The caller decides which
    names may be told: an owner hands over only those that `status` lists, or that its trainers may use.
    """
    found = closest(name, known)
    return f"; did you mean {found!r}?" if found else ""


def closest(name: str, known: Iterable[str]) -> str:
    """The closest of some names; empty if none is close. Bounded as `hint`.

    A name without dots is also close to a dotted one that ends with it, such as `Tower` to `my_reco.Tower`.
    """
    if not 0 < len(name) <= _LONGEST:
        return ""
    # Ratios above the cutoff need similar lengths; the first letters are more often right than those that follow.
    shortest, longest = len(name) * 0.66, len(name) * 1.5
    folded, ending = name.casefold(), f".{name}"
    similar: list[str] = []
    begins_alike: list[str] = []
    for each in islice(known, _MOST_NAMES):
        if each.endswith(ending) and len(each) <= _LONGEST:
            return each
        if shortest <= len(each) <= longest:
            if each.casefold() == folded:
                return each
            (begins_alike if each[:2] == name[:2] else similar).append(each)
    most = min(_MOST_COMPARED, max(_MOST_LETTERS // len(name) ** 2, 1))
    if len(begins_alike) > most:
        # Many names differ in their ends, such as tower_0017.
        begins_alike.sort(key=lambda each: each[-3:] != name[-3:])
    compared = (begins_alike + similar)[:most]
    found = difflib.get_close_matches(name, compared, n=1, cutoff=0.6 if len(name) < 5 else 0.75)
    return found[0] if found else ""


def suggesting(cls: type[T]) -> type[T]:
    """A decorator for classes: a keyword argument that the constructor does not take is met with the closest one."""
    made: Callable[..., None] = cls.__init__

    @functools.wraps(made)
    def __init__(self: T, *args: Any, **kwargs: Any) -> None:
        try:
            made(self, *args, **kwargs)
        except TypeError as error:
            if close := argument_hint(made, kwargs):
                raise TypeError(f"{error}{close}") from None
            raise

    cls.__init__ = __init__  # type: ignore[method-assign, assignment]
    return cls


def argument_hint(function: Callable[..., Any], given: Iterable[str]) -> str:
    """The same for the first keyword argument that a function does not take."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ""  # it is written in C
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return ""
    known = [each.name for each in parameters]
    return next((hint(name, known) for name in given if name not in known), "")
