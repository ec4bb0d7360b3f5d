"""The log: appends records, and tells when they are on the disk.

A record that was appended is in the page cache: it outlives the process, however that ends. Once it is synced, it also
outlives the machine.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ps_service.durability.epoch import FencedError, RemovedError
from ps_service.durability.log import records
from ps_service.durability.log.disk import Disk
from ps_service.durability.log.segments import SEGMENT_BYTES, Segments
from ps_wire.runtime.locks import ReportingLock

if TYPE_CHECKING:
    from ps_service.durability.epoch import Epoch
    from ps_service.durability.log.chain import Chain
    from ps_service.durability.log.disk import Buffer
    from ps_service.durability.log.records import Record

_log = logging.getLogger(__name__)

_AHEAD: Final = 2
"""The part of a file, as its divisor, after which the next one is allocated."""


_EPOCH_SECONDS: Final = 1.0
"""Seconds without a look at the epoch after which no record is appended before one."""


class LogError(OSError):
    """The log cannot be written; the message says why, and what to do."""


class Lag(NamedTuple):
    """What is not on the disk: records, their bytes, and seconds since the first of them was appended."""

    records: int
    nbytes: int
    seconds: float


class Log:
    """The log in a folder. Safe to use from several threads.

    With an `interval`, records are synced after at most so many seconds; with 0, as soon as possible, all that came
    meanwhile together; with None, only by `sync`. `end` is the position behind the last record, and `synced` the one
    up to which the log is on the disk; up to `room` there is space without another file. `trouble` is why the last
    record could not be written; None if it could.

    With an `epoch`, that is checked before a sync counts, before a file begins, and before a record is appended a
    second after the last check. If there is a higher one, the log fails as after a sync that has failed; so it does
    if somebody has removed the file that is written to, or the folder. With a `chain`, records are signed.
    """

    def __init__(
        self,
        folder: Path,
        interval: float | None,
        disk: Disk | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        epoch: Epoch | None = None,
        chain: Chain | None = None,
    ) -> None:
        self._segments = Segments(folder, disk or Disk(), segment_bytes, self._check_epoch, chain)
        self._chain = chain
        self._epoch = epoch
        # When it was checked last, by a clock that also runs while the machine sleeps.
        self._checked = 0.0
        self._segment_bytes = segment_bytes
        self._folder = folder
        self._interval = interval
        self.end = self.synced = self.room = 0
        self.trouble: LogError | None = None
        # Bytes of the record for which there was no room.
        self._wanted = 0
        self._failure: OSError | None = None
        # Records that were appended, those that are on the disk, and when the first of the others was appended.
        self._records = self._synced_records = 0
        self._since = 0.0
        # Whether somebody waits for the next sync, which has not begun.
        self._is_hurried = False
        # Held while a record is written, for which the disk may have to be waited.
        self._lock = ReportingLock()
        self._changed = threading.Condition()
        # Whether the thread waits for a first record; while it does something else, nobody need wake it.
        self._is_idle = False
        self._is_closed = False
        self._waiting: list[tuple[int, int, Callable[[LogError | None], object]]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None

    def read(self, begin: int, code: bytes = b"") -> Iterator[Record]:
        """The records from a position on, behind the record with a code if they are signed; before `open`. The position
        behind the last is the `end` then. Raises `DamagedLogError` and `SignatureError`."""
        self.end = begin
        if self._chain is not None:
            self._chain.follow(code)
        for record in self._segments.records(begin):
            yield record
            self.end = record.end

    def open(self, position: int) -> None:
        """Lets records be appended from a position on. Raises `LogError`."""
        try:
            self._segments.begin(position)
        except OSError as error:
            raise self._explained(error) from error
        with suppress(OSError):  # on a full disk there is still room in the last file
            self._segments.prepare()
        self.end = self.synced = position
        self.room = self._segments.room
        if self._interval is not None:
            self._thread = threading.Thread(target=self._sync_again_and_again, name="ps-log", daemon=True)
            self._thread.start()

    def append(self, message: bytes, chunks: Sequence[Buffer] = ()) -> int:
        """Appends a record; returns the position behind it. Raises `LogError` if it could not be written; nothing of
        it is there."""
        nbytes = records.size(len(message), sum(map(len, chunks)), self._chain is not None)
        with self._lock:
            self._check()
            position = self.end
            try:
                if self._epoch is not None and _clock() - self._checked > _EPOCH_SECONDS:
                    self._check_epoch()
                if not self._segments.has_space(position, nbytes):
                    self._segments.extend(position, nbytes)
                    self.room = self._segments.room
                self._segments.write(position, self.synced, message, chunks)
            except OSError as error:
                self._note(error, nbytes)
                raise self._explained(error) from error
            if self._records == self._synced_records:
                self._since = time.monotonic()
            self._records += 1
            self.end = position + nbytes
            self.trouble = None
        if self._is_idle:
            self._wake()
        return position + nbytes

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def check(self, nbytes: int = 0) -> None:
        """Raises `LogError` if a record of so many bytes cannot be appended now."""
        with self._lock:
            self._check()
            try:
                if not self._segments.has_space(self.end, nbytes):
                    self._segments.prepare(nbytes)
            except OSError as error:
                self._note(error, nbytes)
                raise self._explained(error) from error
            self.trouble = None

    def try_again(self) -> None:
        """Looks whether there is room now for the record for which there was none. Raises `LogError` if there is
        not."""
        self.check(self._wanted)

    def _note(self, error: OSError, nbytes: int) -> None:
        """Keeps why a record of so many bytes could not be written. What waits hears of a higher epoch, or
        of a file that was removed, by the sync."""
        self.trouble, self._wanted = self._explained(error), nbytes
        if isinstance(error, FencedError | RemovedError):
            self._failure = error

    def _check_epoch(self) -> None:
        if self._epoch is not None:
            self._checked = _clock()
            # First: who has a higher epoch may have removed the file, and then it is that which is told.
            removed = self._segments.removed()
            self._epoch.check()
            if removed is not None:
                raise RemovedError(removed)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._explained(self._failure)

    def when_synced(self, position: int, callback: Callable[[LogError | None], object], hurry: bool = False) -> None:
        """Calls a function, in any thread, once the log is on the disk up to a position, or with the error if it could
        not be synced. It must not raise. In a `hurry` the next sync does not wait for its time."""
        with self._lock:
            is_there, failure = self.synced >= position, self._failure
            if not is_there and failure is None:
                heapq.heappush(self._waiting, (position, next(self._numbers), callback))
        if is_there or failure is not None:
            callback(None if is_there or failure is None else self._explained(failure))
        elif hurry:
            with self._changed:
                self._is_hurried = True
                self._changed.notify()

    def sync(self) -> None:
        """Waits until all records are on the disk. Raises `LogError` if that fails. Then nothing can be appended any
        more: after a sync that has failed, the system may have dropped what it had to write."""
        with self._segments.syncing:
            with self._lock:
                end, unsynced = self.end, self._segments.take_unsynced()
                records, began = self._records, time.monotonic()
            try:
                self._segments.sync(unsynced)
                # Afterwards: what was on the disk before an epoch began, its owner has read.
                self._check_epoch()
            except OSError as error:
                self._failed(error)
                raise self._explained(error) from error
        with self._lock:
            self.synced = max(self.synced, end)
            self._synced_records, self._since = records, began
            ready = []
            while self._waiting and self._waiting[0][0] <= self.synced:
                ready.append(heapq.heappop(self._waiting)[2])
        for callback in ready:
            callback(None)

    def refuse(self, error: OSError) -> None:
        """Appends nothing from now on, for this reason."""
        self._failed(error)

    def _failed(self, error: OSError) -> None:
        with self._lock:
            self._failure, self.trouble = error, self._explained(error)
            waiting, self._waiting = self._waiting, []
        for _, _, callback in waiting:
            callback(self._explained(error))

    def cut(self, position: int) -> None:
        """Frees the files that are not needed to read from a position on. Only what was synced is freed, so that the
        records that stay tell that there was more. Raises `OSError`."""
        with self._segments.syncing, self._lock:
            self._segments.cut(min(position, self.synced))

    def place(self) -> tuple[int, bytes]:
        """The end, and the code of the record before it; empty if records are not signed."""
        with self._lock:
            return self.end, b"" if self._chain is None else self._chain.code

    @property
    def has_failed(self) -> bool:
        """Whether nothing can be appended any more: a sync has failed, or `refuse` was called."""
        return self._failure is not None

    @property
    def nbytes(self) -> int:
        """Bytes of the files in use."""
        return self._segments.nbytes

    @property
    def lag(self) -> Lag:
        """What is not on the disk now. May be asked in any thread, and waits for none."""
        records, synced = self._records - self._synced_records, self.synced
        if not records:
            return Lag(0, 0, 0.0)
        return Lag(records, max(self.end - synced, 0), time.monotonic() - self._since)

    def close(self) -> None:
        """Ends the thread and closes the files, without a last sync."""
        self._is_closed = True
        self._wake()
        if self._thread is not None:
            self._thread.join()
        self._segments.close()

    def _sync_again_and_again(self) -> None:
        is_told = False
        while True:
            with self._changed:
                self._is_idle = True
                self._changed.wait_for(lambda: self._is_closed or self.end > self.synced)
                self._is_idle = False
                if self._interval:
                    self._changed.wait_for(lambda: self._is_closed or self._is_hurried, self._interval)
                self._is_hurried = False
                if self._is_closed:
                    return
            try:
                self.sync()
                with self._lock:
                    used = self.end - self._segments.used[-1].start
                if used * _AHEAD > self._segment_bytes:
                    self._segments.prepare()
                is_told = False
            except LogError as error:
                _log.error("%s", error.strerror)
                return
            except OSError as error:
                if not is_told:
                    _log.warning("%s", self._explained(error).strerror)
                is_told = True

    def _explained(self, error: OSError) -> LogError:
        reason = error.strerror or str(error)
        return LogError(error.errno, f"the log in {self._folder} cannot be written: {reason}")


def _clock() -> float:
    """Seconds, also of those in which the machine slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
