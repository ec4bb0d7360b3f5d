"""The source of a class or function as text, to tell whether two processes have the same one."""

from __future__ import annotations

import ast
import hashlib
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from ps_wire.codec.names import module_name

_PARSING: Final = threading.Lock()
"""Held while a text is parsed: Python 3.11 counts the depth of all threads' trees together, and where two threads parse
at once one of them may get a `SystemError`. A library that parses meanwhile may still be the cause of one."""

TextOf = Callable[[Any], str]
"""The text of the file of a class or function; empty if it is not known."""


def text_of(thing: Any) -> str:
    """The text of the file of a class or function as it is now."""
    return read(file_of(thing))


def read(file: str) -> str:
    """The text of a file, or an empty one if it cannot be read."""
    with suppress(OSError, UnicodeDecodeError):
        return Path(file).read_text("utf-8")
    return ""


def fingerprint(thing: Any, text_of: TextOf = text_of) -> bytes:
    """A digest of the source of a function, or of a class and those of its bases that are in the same top-level
    package, as files have it that `text_of` reads. Empty if the source of one of them is not known.

    Comments count, blanks at the ends of lines do not.
    """
    digest = hashlib.blake2b(digest_size=16)
    found = False
    for each in parts(thing):
        source = _source(text_of(each), each.__qualname__)
        if not source:
            return b""
        found = True
        digest.update(source.encode())
    return digest.digest() if found else b""


_KNOWN: WeakKeyDictionary[type, bytes] = WeakKeyDictionary()


def own_fingerprint(cls: type) -> bytes:
    """The fingerprint of a class of this process, as its file was when it was asked for first; empty for torch's."""
    if _package(cls) == "torch":
        return b""
    if cls not in _KNOWN:
        _KNOWN[cls] = fingerprint(cls)
    return _KNOWN[cls]


def parts(thing: Any) -> Iterator[Any]:
    """A function, or a class and those of its bases that are in the same top-level package."""
    if not isinstance(thing, type):
        yield inspect.unwrap(thing)
        return
    package = _package(thing)
    for each in thing.__mro__:
        if _package(each) == package:
            yield each


def file_of(thing: Any) -> str:
    """The file of the source of a class or function; empty if there is none, as for what a console defines."""
    with suppress(OSError, TypeError):
        return inspect.getsourcefile(thing) or ""
    return ""


def _package(cls: type) -> str:
    return module_name(str(cls.__module__)).partition(".")[0]


def _source(text: str, qualname: str) -> str:
    """The lines of all definitions of that name in a text, with their decorators."""
    try:
        with _PARSING:
            nodes: list[Any] = [ast.parse(text)]
    except (SyntaxError, ValueError, RecursionError, SystemError):
        return ""
    for name in qualname.split("."):
        nodes = [found for node in nodes for found in ast.walk(node) if getattr(found, "name", "") == name]
    lines = text.splitlines()
    return "\n".join(line.rstrip() for node in nodes for line in lines[_first(node) - 1 : node.end_lineno])


def _first(node: Any) -> int:
    """The number of the first line of a definition, which may be that of a decorator."""
    return min((each.lineno for each in getattr(node, "decorator_list", ())), default=int(node.lineno))
