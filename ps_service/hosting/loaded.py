"""The source of the classes that an owner hosts, as it was when the owner loaded them."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import Any, Final, NamedTuple

from ps_wire.codec import sources

_OWN: Final = frozenset({"ps_service", "ps_wire", "trainer_client", "torch"})
"""Packages whose files nobody edits while an owner runs."""

_DAY: Final = 24 * 3600.0


class _File(NamedTuple):
    """A file as it was loaded. `state` is its time of change and its size then."""

    module: str
    text: str
    state: tuple[int, int]
    loaded: float


class LoadedSources:
    """The files of allowed classes and functions, with their text and when they were loaded.

    What compares them reads files, so it is for errors, and for objects that are made. Errors cost a look at the time
    of change of a file, unless it has changed.
    """

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        # The file of each class and function that was loaded.
        self._paths: dict[Any, str] = {}
        self._own: dict[Any, bytes] = {}

    def add(self, thing: Any) -> None:
        """Keeps the files of a class or function that was loaded just now."""
        for each in sources.parts(thing):
            module, path = str(each.__module__), sources.file_of(each)
            if not path or module.partition(".")[0] in _OWN | sys.stdlib_module_names:
                continue
            self._paths[each] = path
            if path not in self._files:
                self._files[path] = _File(module, sources.read(path), _state(path), time.time())

    def difference(self, thing: Any, theirs: bytes = b"") -> str:
        """Says that the owner has loaded a class or function before its file was changed, or has another one than the
        sender of the fingerprint `theirs`; empty if neither is known. It goes on from the name of the owner."""
        files = [self._paths[each] for each in sources.parts(thing) if each in self._paths]
        if not files or not (own := self._fingerprint(thing)) or own == theirs:
            return ""
        file, name = self._files[files[0]], thing.__qualname__
        loaded = f"has loaded {file.module} at {_when(file.loaded)}"
        if any(map(self._is_changed, files)) and sources.fingerprint(thing, self._text_now) not in (b"", own):
            return f"{loaded}, before your change to {name}: restart it"
        if theirs:
            return (
                f"{loaded}, and {name} there differs from that of this program: give it the same file, and restart it"
            )
        return ""

    def missing(self, name: str) -> str:
        """Says that the module of a name that the owner does not know was loaded before its file was changed."""
        for path, file in self._files.items():
            if name.startswith(f"{file.module}.") and self._is_changed(path):
                return f"; the owner has loaded {file.module} at {_when(file.loaded)}, before your change: restart it"
        return ""

    def _fingerprint(self, thing: Any) -> bytes:
        """That of the source as it was loaded."""
        if thing not in self._own:
            self._own[thing] = sources.fingerprint(thing, self._loaded_text)
        return self._own[thing]

    def _loaded_text(self, thing: Any) -> str:
        path = self._paths.get(thing)
        return "" if path is None else self._files[path].text

    def _text_now(self, thing: Any) -> str:
        return sources.read(self._paths.get(thing, ""))

    def _is_changed(self, path: str) -> bool:
        file = self._files[path]
        return _state(path) != file.state and sources.read(path) != file.text


def _state(path: str) -> tuple[int, int]:
    with suppress(OSError):
        found = os.stat(path)
        return found.st_mtime_ns, found.st_size
    return 0, 0


def _when(at: float) -> str:
    """A time of day; with its date if that is a day ago or more."""
    return time.strftime("%H:%M" if time.time() - at < _DAY else "%Y-%m-%d %H:%M", time.localtime(at))
