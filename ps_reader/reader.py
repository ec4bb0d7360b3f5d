"""Follows the folder of an export."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ps_reader import layout
from ps_reader.errors import ExportError
from ps_reader.version import Version

_ATTEMPTS: Final = 5
"""How often a version is read that may be removed meanwhile."""


class Reader:
    """The newest version of an export, and earlier ones. A thread looks for new versions; `current` is replaced once a
    new one is whole, so that nobody waits for it. Made by `open`.

    What is read of one `Version` belongs together: take `current` once for each answer.
    """

    def __init__(self, folder: Path, every: float) -> None:
        self._folder = folder
        self._every = every
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._kept: dict[int, Version] = {}
        self._pinned: Version | None = None
        self._failure: ExportError | None = None
        self._closed = threading.Event()
        # Looks are numbered, so that one that took longer does not take the place of a later one.
        self._looks = itertools.count(1)
        self._last_look = 0
        self._newest, self._as_of = self._read_latest()
        self._thread = threading.Thread(target=self._follow, name="ps-reader", daemon=True)
        self._thread.start()

    @property
    def current(self) -> Version:
        """The newest version, or the one that it was rolled back to."""
        return self._pinned or self._newest

    @property
    def as_of(self) -> float:
        """A time, in seconds since 1970, at which the newest version was what the owners had: every step that was
        acknowledged before is part of it. It goes on also while nothing changes."""
        return self._as_of

    @property
    def age(self) -> float:
        """Seconds since that time."""
        return time.time() - self._as_of

    @property
    def failure(self) -> ExportError | None:
        """Why the newest version cannot be read, while that is so."""
        return self._failure

    def versions(self) -> list[int]:
        """The versions that are there, in ascending order."""
        return layout.versions(self._folder)

    def rollback(self, version: int) -> Version:
        """Takes an earlier version, and stays with it until `follow`. Returns it.

        Raises `ExportError` if it is not there any more.
        """
        found = self._read(version)
        with self._changed:
            self._pinned = found
            self._changed.notify_all()
        return found

    def follow(self) -> Version:
        """Takes the newest version, and those that come, again. Returns it."""
        self._pinned = None
        return self.refresh()

    def refresh(self) -> Version:
        """Looks for a new version now, and returns the current one. Raises `ExportError` if it cannot be read."""
        look = next(self._looks)
        version, export, as_of = layout.latest(self._folder)
        newest = self._newest
        if (version, export) != (newest.number, newest.export):
            newest, as_of = self._read_latest()
        with self._changed:
            if look > self._last_look:
                self._newest, self._as_of, self._last_look = newest, as_of, look
                self._changed.notify_all()
        return self.current

    def wait_for(self, version: int, timeout: float | None = None) -> Version:
        """Waits until the current version is this one or a later one. Raises `TimeoutError` if it takes too long."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.current.number >= version, timeout):
                raise TimeoutError(f"version {version} has not come within {timeout} s; {self.current!r} is current")
            return self.current

    def close(self) -> None:
        """Ends the thread. Versions stay readable."""
        self._closed.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _follow(self) -> None:
        while not self._closed.wait(self._every):
            try:
                self.refresh()
                self._failure = None
            except ExportError as error:
                self._failure = error
            except Exception as error:  # the thread goes on: the folder may be mended
                self._failure = ExportError(f"{self._folder} cannot be read: {error!r}")

    def _read_latest(self) -> tuple[Version, float]:
        for attempt in range(_ATTEMPTS):
            version, export, as_of = layout.latest(self._folder)
            try:
                found = self._read(version)
                if found.export != export:
                    raise ExportError(f"{self._folder} has just been written anew")
            except ExportError:
                # It may have been removed because there is a newer one.
                if attempt == _ATTEMPTS - 1 or layout.latest(self._folder)[:2] == (version, export):
                    raise
            else:
                return found, as_of
        raise AssertionError

    def _read(self, version: int) -> Version:
        manifest = layout.read_manifest(self._folder, version)
        with self._lock:
            kept = {number: each for number, each in self._kept.items() if each.export == manifest.export}
        if version in kept:
            return kept[version]
        known = {name: file for each in kept.values() for name, file in each.files.items()}
        found = Version(self._folder, manifest, known, kept[max(kept)] if kept else None)
        there = {version, *self.versions()}
        with self._lock:
            self._kept = {number: each for number, each in kept.items() if number in there} | {version: found}
        return found


def open(folder: str | Path, every: float = 0.2) -> Reader:  # as gzip.open, and others
    """A reader of the folder of an export, which looks for new versions every so many seconds.

    Raises `ExportError` if there is no export, or none that this release can read.
    """
    return Reader(Path(folder), every)
