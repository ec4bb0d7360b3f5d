"""The audit log: who came, was refused, and changed what exists, as lines of JSON in a file or on standard output."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Any, Final

import structlog

_log = logging.getLogger(__name__)

_render: Final = structlog.processors.JSONRenderer()

STREAM: Final = "-"
"""The place that stands for standard output."""

MOST_LINES: Final = 100
"""Most lines of one kind about one identity in a minute."""

_WINDOW_SECONDS: Final = 60.0
"""For which they are counted."""

_MOST_COUNTED: Final = 1024
"""Kinds and identities that are counted apart; beyond that, the oldest window ends early."""

_MOST_WAITING: Final = 10_000
"""Lines that may wait for a slow disk; those beyond are lost."""

_LOOK_SECONDS: Final = 1.0
"""Seconds between looks at windows that are over."""

_CLOSE_SECONDS: Final = 2.0
"""Longest time for the lines that wait at the end."""


@dataclass(slots=True)
class _Window:
    """The lines of one kind about one identity, from a time on the clock until they may be written again."""

    until: float
    lines: int = 0
    left_out: int = 0


class AuditLog:
    """A thread writes the lines, so nobody waits for the disk. A file that was moved away is made again, so it can be
    rotated. Lines that cannot be written are lost, and counted: a full disk stops nobody. Safe from several threads.

    Raises `OSError` if the file cannot be opened at first.
    """

    def __init__(self, place: str, owner: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.written = 0
        self.lost = 0
        self._place = place
        self._owner = owner
        self._clock = clock
        self._file: IO[bytes] | None = None
        self._windows: OrderedDict[tuple[str, str], _Window] = OrderedDict()
        self._fails = False
        # Ends the line before, if only a part of that was written.
        self._rest = ""
        # None ends the thread.
        self._waiting: queue.Queue[dict[str, Any] | None] = queue.Queue(_MOST_WAITING)
        self._open()
        self._thread = threading.Thread(target=self._run, name="ps-audit", daemon=True)
        self._thread.start()

    def note(self, kind: str, level: str, event: str, **told: str) -> None:
        """Has a line written, unless there were too many of its kind about the same identity. Does not block."""
        try:
            self._waiting.put_nowait(self._line(kind, level, event) | {key: each for key, each in told.items() if each})
        except queue.Full:
            self.lost += 1

    def _line(self, kind: str, level: str, event: str) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        return {"timestamp": now, "owner": self._owner, "kind": kind, "level": level, "event": event}

    def close(self) -> None:
        """Writes what waits, and how many lines were left out."""
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=_CLOSE_SECONDS)
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while True:
            try:
                line = self._waiting.get(timeout=_LOOK_SECONDS if self._windows else None)
            except queue.Empty:
                self._end_windows(self._clock())
                continue
            if line is None:
                break
            now = self._clock()
            self._end_windows(now)
            if self._is_wanted(line, now):
                self._write(line)
        self._end_windows(float("inf"))
        if self._file is not None:
            self._file.close()

    def _is_wanted(self, line: Mapping[str, Any], now: float) -> bool:
        key = (line["kind"], _identity(line))
        window = self._windows.setdefault(key, _Window(now + _WINDOW_SECONDS))
        if window.lines >= MOST_LINES:
            window.left_out += 1
            return False
        window.lines += 1
        if len(self._windows) > _MOST_COUNTED:
            self._end_window(next(iter(self._windows)))
        return True

    def _end_windows(self, now: float) -> None:
        while self._windows:
            oldest = next(iter(self._windows))
            if self._windows[oldest].until > now:
                return
            self._end_window(oldest)

    def _end_window(self, key: tuple[str, str]) -> None:
        left_out = self._windows.pop(key).left_out
        if left_out:
            kind, identity = key
            text = f"{left_out:,} lines of the kind {kind!r} about {identity or 'unknown callers'} were left out"
            told = {"of": kind, "identity": identity, "count": left_out}
            self._write(self._line("left_out", "warning", text) | told)

    def _write(self, line: dict[str, Any]) -> None:
        try:
            if self._was_moved():
                self._open()
            assert self._file is not None
            whole = (self._rest + str(_render(None, "", line)) + "\n").encode()
            if self._file.write(whole) < len(whole):
                self._rest = "\n"
                raise OSError("there is no room for a whole line")
            self._rest = ""
        except (OSError, ValueError) as error:
            self.lost += 1
            if not self._fails:
                _log.warning("the audit log %s cannot be written, and lines are lost: %s", self._place, error)
            self._fails = True
            return
        if self._fails:
            _log.info("the audit log %s is written again; %s lines were lost", self._place, f"{self.lost:,}")
        self._fails = False
        self.written += 1

    def _was_moved(self) -> bool:
        if self._place == STREAM or self._file is None:
            return self._file is None
        try:
            return not os.path.samestat(os.stat(self._place), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return True

    def _open(self) -> None:
        if self._place == STREAM:
            self._file = os.fdopen(os.dup(sys.stdout.fileno()), "ab", 0)
            return
        # Only its owner may read it: it names trainers, addresses and objects. A FIFO that nobody reads must not block.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
        before, self._file = self._file, os.fdopen(os.open(self._place, flags, 0o600), "ab", 0)
        if before is not None:
            before.close()


def _identity(line: Mapping[str, Any]) -> str:
    """Whom a line is about, for its limit: ids of trainers are cheap to make, and so are ports."""
    address = line.get("address", "")
    return str(line.get("identity") or line.get("certificate") or address.rpartition(":")[0] or address)
