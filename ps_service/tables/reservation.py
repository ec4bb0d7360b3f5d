"""Memory that is reserved at once, as addresses only, and takes space where it is written."""

from __future__ import annotations

import ctypes
import mmap
import queue
import sys
import threading
from contextlib import suppress
from typing import Any, Final

import torch

_MAP_NORESERVE = 0x4000
"""The flag of Linux on x86, ARM and RISC-V; Python's module has no name for it."""

_MOST_BYTES = 1 << 46
"""Half of the address space of a process under Linux with four levels of page tables."""

_LARGE_PAGE = 2 << 20
"""Bytes of a large page."""

_LARGE_BYTES = 8 << 20
"""Once this much is in use, the system may use large pages, which take memory in steps of `_LARGE_PAGE`."""

_SHARE_AHEAD = 32
_MOST_AHEAD = 16 << 20
"""Memory is taken ahead for at most this share of what is in use, and this many bytes."""

_MADV_POPULATE_WRITE = 23
"""Of Linux since 5.14; Python's module has no name for it before 3.14."""

_MOST_WAITING: Final = 64


class Prefaulter:
    """A thread that takes memory for parts of reserved tensors. It writes nothing, so others may write there meanwhile.

    Look-ups of new ids would wait for pages to be cleared: milliseconds for a large one in a virtual machine that gets
    its memory from the host only when it is used. A part that it is asked for while too many wait, or on a system that
    cannot do it, is left as it is, and whoever writes there first waits.
    """

    def __init__(self) -> None:
        self._waiting: queue.Queue[tuple[torch.Tensor, int, int]] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._madvise: Any = getattr(ctypes.CDLL(None), "madvise", None)

    def ask(self, tensor: torch.Tensor, begin: int, end: int) -> None:
        """Lets the thread take memory for the bytes of a tensor from `begin` to before `end`. Returns at once. The
        tensor begins with a page, and `begin` and `end` are multiples of the size of one."""
        if self._madvise is None:
            return
        with self._starting:
            # There is none yet, or it did not come along into a forked process.
            if self._thread is None or not self._thread.is_alive():
                self._waiting = queue.Queue(_MOST_WAITING)
                self._thread = threading.Thread(
                    target=self._work, args=(self._waiting,), name="ps-prefault", daemon=True
                )
                self._thread.start()
        with suppress(queue.Full):
            self._waiting.put_nowait((tensor, begin, end))

    def wait(self) -> None:
        """Returns when everything that was asked for is done."""
        self._waiting.join()

    def _work(self, waiting: queue.Queue[tuple[torch.Tensor, int, int]]) -> None:
        while True:
            tensor, begin, end = waiting.get()
            address = tensor.data_ptr()
            while begin < end and self._madvise is not None:
                # One large page in a call, for whose time the system locks the address space.
                size = min(_LARGE_PAGE - begin % _LARGE_PAGE, end - begin)
                if self._madvise(ctypes.c_void_p(address + begin), ctypes.c_size_t(size), _MADV_POPULATE_WRITE):
                    self._madvise = None
                begin += size
            del tensor
            waiting.task_done()


PREFAULTER: Final = Prefaulter()
"""That of this process."""


class Reservation:
    """A tensor of zeros whose pages take memory only once they are written. It is freed with the tensor and the views
    of it. A child that is forked gets a copy, as of other memory."""

    def __init__(self, mapped: mmap.mmap, dtype: torch.dtype) -> None:
        self._mapped: Final = mapped
        self._itemsize: Final = dtype.itemsize
        self._large = False
        self._used = 0
        self._prefaulted = 0
        self.tensor: Final = torch.frombuffer(mapped, dtype=dtype)

    @staticmethod
    def make(count: int, dtype: torch.dtype) -> Reservation | None:
        """Reserves addresses for at least one element. The system refuses it, which gives None, under strict accounting
        (`vm.overcommit_memory=2`), by a limit on address space (`ulimit -v`), and where it is not Linux."""
        size = count * dtype.itemsize
        if sys.platform != "linux" or size > _MOST_BYTES:
            return None
        try:
            mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
        except (OSError, ValueError, OverflowError):
            return None
        return Reservation(mapped, dtype)

    def used(self, count: int) -> None:
        """Notes that elements up to `count` are in use, so that many of them get large pages: reads of random rows take
        half of the time there."""
        if not self._large and count * self._itemsize >= _LARGE_BYTES:
            self._large = True
            with suppress(OSError):  # a system without large pages
                self._mapped.madvise(mmap.MADV_HUGEPAGE)

    def grown(self, count: int) -> None:
        """As `used`, for elements that come into use in order. A thread takes memory for those that come next: for
        twice the last growth, but at most 1/32 of what is in use, and 16 MiB."""
        self.used(count)
        used = count * self._itemsize
        if not self._large or used <= self._used:
            return
        ahead = min(2 * (used - self._used), used // _SHARE_AHEAD, _MOST_AHEAD)
        self._used = used
        begin = max(used, self._prefaulted) // _LARGE_PAGE * _LARGE_PAGE
        end = min(-(-(used + ahead) // _LARGE_PAGE) * _LARGE_PAGE, len(self._mapped))
        if begin < end:
            self._prefaulted = end
            PREFAULTER.ask(self.tensor, begin, end)

    def clear(self) -> None:
        """Makes all elements zero and frees their pages."""
        self._used = self._prefaulted = 0
        self._mapped.madvise(mmap.MADV_DONTNEED)

    def give_back(self, begin: int, end: int) -> None:
        """Frees the pages that hold nothing but these elements, which nobody reads again."""
        first = -(-begin * self._itemsize // mmap.PAGESIZE) * mmap.PAGESIZE
        last = end * self._itemsize // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last:
            self._mapped.madvise(mmap.MADV_DONTNEED, first, last - first)
