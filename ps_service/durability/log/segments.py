"""The files of the log, which are allocated ahead and used again."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from ps_service.durability.log import records
from ps_wire.limits import MIB

if TYPE_CHECKING:
    from ps_service.durability.log.chain import Chain
    from ps_service.durability.log.disk import Buffer, Disk
    from ps_service.durability.log.records import Record

SEGMENT_BYTES: Final = 64 * MIB
"""Size of a file. One that a larger record needs has the size of that."""

_SPARE: Final = 4
"""Files that are kept to be used again, besides those that were needed since the log was cut before."""

_LARGEST: Final = 4
"""Size of the largest file that is kept to be used again, as a multiple of that of most files."""

_NAME: Final = re.compile(r"log-(\d{20})")
_FREE: Final = re.compile(r"free-(\d{20})")


def _no_fence() -> None:
    """Of a log that no other process writes."""


class DamagedLogError(ValueError):
    """The log lacks something that was on the disk; the message names its position."""


@dataclass(slots=True, eq=False)
class Segment:
    """A file of the log: the position of its first byte, its size in bytes, its descriptor, -1 while it is not open,
    and whether this process has made it."""

    path: Path
    start: int
    nbytes: int
    descriptor: int = -1
    is_own: bool = False
    _mapping: mmap.mmap | None = None

    def memory(self) -> memoryview:
        """The bytes of the file, to be read."""
        if not self.nbytes:
            return memoryview(b"")  # a crash has left the name, and nothing else
        if self._mapping is None:
            with _opened(self.path) as file:
                self._mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return memoryview(self._mapping)

    def later(self, begin: int) -> Iterator[Record]:
        """The whole records that lie anywhere behind an offset, which is a multiple of 64."""
        with _opened(self.path) as file:
            # What was allocated and never written is not read: most of a file.
            for first, end in _data(file.fileno(), begin):
                yield from records.later(self.memory(), self.start, first, end)

    def close(self, disk: Disk) -> None:
        """Closes the file, if it is open."""
        self._mapping = None  # it ends with the last payload that refers to it
        if self.descriptor >= 0:
            disk.close(self.descriptor)
            self.descriptor = -1


class Unsynced(NamedTuple):
    """Files that were written to, and whether names have changed."""

    segments: list[Segment]
    is_renamed: bool


class Segments:
    """The files of a log in a folder, in the order of their positions. The last one is written to.

    Each process begins a file of its own, unless the disk is full, so one that runs on although another has taken its
    place writes to none that is read: what it has behind the begin of the next file does not count. Files of an earlier
    process are not used again: it may have them open, and would write into the log of this one, whatever their names
    are. `fence` raises `OSError` in such a process before it gives a file of the log its name. With a `chain` records
    are signed, and only read if they are.
    """

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        nbytes: int = SEGMENT_BYTES,
        fence: Callable[[], None] = _no_fence,
        chain: Chain | None = None,
    ) -> None:
        self._folder = folder
        self._chain = chain
        self._disk = disk
        self._nbytes = nbytes
        self._fence = fence
        found = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
        numbered = sorted((int(name[1]), path) for name, path in found if name)
        self.used = [Segment(path, start, path.stat().st_size) for start, path in numbered]
        self._free: list[Segment] = []
        # Other processes on this folder have other numbers.
        self._numbers = itertools.count(time.time_ns())
        self._unsynced: list[Segment] = []
        # The file that was written to last, also if all of it is synced; None if nothing was written yet.
        self._written: Segment | None = None
        self._is_renamed = False
        # The fewest free files that there were since the log was cut before: so many were not needed.
        self._unneeded = 0
        # Held while files are synced, so that none of them is closed meanwhile.
        self.syncing = threading.Lock()

    def records(self, begin: int) -> Iterator[Record]:
        """The records from a position on. What follows the last whole one is left out, if it was not on the disk.
        Raises `DamagedLogError` if it was, and `SignatureError`."""
        position = begin
        for i, segment in enumerate(self.used):
            following = self.used[i + 1].start if i + 1 < len(self.used) else None
            if following is not None and following <= begin:
                continue
            if not segment.start <= position <= segment.start + segment.nbytes:
                break
            for record in records.read(segment.memory(), segment.start, position - segment.start):
                if self._chain is not None:
                    self._chain.check(record)
                yield record
                position = record.end
                if position == following:
                    break
        self._check_end(position)

    def _check_end(self, end: int) -> None:
        """Raises `DamagedLogError` if a record behind the end says that the log was on the disk beyond it."""
        for segment, following in itertools.zip_longest(self.used, self.used[1:]):
            until = segment.start + segment.nbytes if following is None else following.start
            if until <= end:
                continue
            for record in segment.later(max(end - segment.start, 0)):
                if record.synced > end and record.position < until:
                    raise DamagedLogError(
                        f"the log in {self._folder} is damaged at position {end}: what was on the disk up to "
                        f"{record.synced} is not whole any more"
                    )

    def begin(self, position: int) -> None:
        """Begins a file at a position. What lies behind it is removed: it was not on the disk. What lies before it is
        synced, because an earlier process may have ended before it was. Raises `OSError`."""
        while self.used and self.used[-1].start >= position:
            self.used.pop()
        self._take_over()
        self._disk.sync_folder(self._folder)
        for each in self.used:
            each.descriptor = self._disk.open(each.path)
            self._disk.sync(each.descriptor)
        try:
            self.extend(position, 0)
        except OSError as error:
            last = self.used[-1] if self.used else None
            if error.errno != errno.ENOSPC or last is None or position > last.start + last.nbytes:
                raise
            # On a full disk there is still room in the last file.
            self._erase(last, position)
        else:
            self.sync(self.take_unsynced())

    def _erase(self, segment: Segment, position: int) -> None:
        """Overwrites the beginnings of records that were dropped: they must never be read as later ones."""
        places = [each.position for each in segment.later(position - segment.start)]
        for place in places:
            self._disk.write(segment.descriptor, [bytes(records.ALIGNMENT)], place - segment.start)
        self._disk.sync(segment.descriptor)

    def _take_over(self) -> None:
        """Removes what is free, so that an earlier process that runs on cannot name it as a file of the log; and what
        it has named since this one began to read."""
        known = {each.path for each in self.used}
        # In this order: what an earlier process names meanwhile is not free any more, and found by its new name.
        for pattern in (_FREE, _NAME):
            found = [path for path in self._folder.iterdir() if pattern.fullmatch(path.name) and path not in known]
            self._fence()  # what was found is not that of a later process
            for path in found:
                self._disk.remove(path)

    def extend(self, position: int, nbytes: int) -> Segment:
        """A further file, which begins at a position, and has space for a record. Raises `OSError`."""
        segment = self._taken(nbytes) or self._created(nbytes)
        path = self._folder / f"log-{position:020}"
        try:
            # In this order: a later process removes what is free once it has fenced this one.
            self._fence()
            self._disk.rename(segment.path, path)
        except BaseException:
            self._remove(segment)
            raise
        if self.used and self.used[-1].start == position:
            # It was empty, and too small. Its name was not taken from it before: it may be that of a later process.
            replaced = self.used.pop()
            self._forget(replaced)
            replaced.close(self._disk)
        segment.path, segment.start = path, position
        self._is_renamed = True
        self.used.append(segment)
        return segment

    def _taken(self, nbytes: int) -> Segment | None:
        """A free file with so many bytes, which is not free any more."""
        fitting = [each for each in self._free if each.nbytes >= nbytes]
        if not fitting:
            return None
        segment = min(fitting, key=attrgetter("nbytes"))
        self._free.remove(segment)
        self._unneeded = min(self._unneeded, len(self._free))
        return segment

    def _created(self, nbytes: int) -> Segment:
        """A new file with so many bytes or more."""
        size = -(-max(nbytes, 1) // self._nbytes) * self._nbytes
        path = self._free_path()
        return Segment(path, 0, size, self._disk.create(path, size), is_own=True)

    def _free_path(self) -> Path:
        return self._folder / f"free-{next(self._numbers):020}"

    def write(self, position: int, synced: int, message: bytes, chunks: Sequence[Buffer]) -> None:
        """Writes a record into the last file, which has space for it; its header last. Raises `OSError`."""
        last = self.used[-1]
        if last not in self._unsynced:
            self._unsynced.append(last)
            self._written = last
        begin = position - last.start
        chain = self._chain
        body = begin + records.head_bytes(chain is not None)
        self._disk.write(last.descriptor, [message, *chunks], body)
        end = body + len(message) + sum(map(len, chunks))
        sign = None if chain is None else chain.sign
        header = records.header(position, synced, len(message), last.memory()[body:end], sign)
        self._disk.write(last.descriptor, [header], begin)
        if chain is not None:
            chain.follow(header[records.HEADER_BYTES :])

    def removed(self) -> Path | None:
        """The name of the file that was written to last, if it is there no more, or another file has it. The caller
        has `syncing`, or nobody writes meanwhile."""
        written = self._written
        return None if written is None or self._disk.is_at(written.path, written.descriptor) else written.path

    def has_space(self, position: int, nbytes: int) -> bool:
        """Whether the last file has space for a record of so many bytes at a position."""
        last = self.used[-1]
        return position + nbytes <= last.start + last.nbytes

    @property
    def room(self) -> int:
        """The position at which the last file ends."""
        last = self.used[-1]
        return last.start + last.nbytes

    def take_unsynced(self) -> Unsynced:
        """What was written since the last time, for `sync`. Nobody writes meanwhile."""
        taken = Unsynced(self._unsynced, self._is_renamed)
        self._unsynced, self._is_renamed = [], False
        return taken

    def sync(self, unsynced: Unsynced) -> None:
        """Waits until all of that is on the disk; the caller has `syncing`. Raises `OSError`."""
        for each in unsynced.segments:
            self._disk.sync(each.descriptor)
        if unsynced.is_renamed:
            self._disk.sync_folder(self._folder)

    def prepare(self, nbytes: int = 0) -> None:
        """Allocates a file for later with so many bytes, if there is none; a very large one only to see that there is
        space. Raises `OSError`."""
        if not any(each.nbytes >= nbytes for each in self._free):
            self._keep(self._created(nbytes))

    def cut(self, position: int) -> None:
        """Frees the files that end before a position; the caller has `syncing`. Raises `OSError`."""
        self._free.sort(key=attrgetter("nbytes"))
        for _ in range(self._unneeded - _SPARE):
            self._remove(self._free.pop())
        self._unneeded = len(self._free)
        while len(self.used) > 1 and self.used[1].start <= position:
            self._release(self.used.pop(0))

    def close(self) -> None:
        """Closes all files."""
        for each in (*self.used, *self._free):
            each.close(self._disk)

    @property
    def nbytes(self) -> int:
        """Bytes of the files in use."""
        return sum(each.nbytes for each in self.used)

    def _release(self, segment: Segment) -> None:
        self._forget(segment)
        if not segment.is_own:
            self._remove(segment)
            return
        path = self._free_path()
        self._disk.rename(segment.path, path)
        segment.path = path
        self._keep(segment)

    def _forget(self, segment: Segment) -> None:
        if segment in self._unsynced:
            self._unsynced.remove(segment)
        if segment is self._written:
            self._written = None

    def _keep(self, segment: Segment) -> None:
        if segment.nbytes <= _LARGEST * self._nbytes:
            self._free.append(segment)
        else:
            self._remove(segment)

    def _remove(self, segment: Segment) -> None:
        segment.close(self._disk)
        self._disk.remove(segment.path)


def _opened(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb")


def _data(descriptor: int, begin: int) -> Iterator[tuple[int, int]]:
    """Where a file has more than holes behind an offset, as far as its file system tells: begins and ends."""
    size = os.fstat(descriptor).st_size
    while begin < size:
        try:
            begin = os.lseek(descriptor, begin, os.SEEK_DATA)
            end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            end = size  # it does not tell
        yield begin, end
        begin = end
