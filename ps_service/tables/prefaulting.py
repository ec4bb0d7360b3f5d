"""Takes memory for pages before they are written, so that look-ups of new ids do not wait until pages are cleared.

In a virtual machine that gets its memory from the host only when it is used, a large page may take milliseconds.
"""

from __future__ import annotations

import ctypes
import queue
import threading
from contextlib import suppress
from typing import Any, Final

import torch

_MADV_POPULATE_WRITE = 23
"""Of Linux since 5.14; Python's module has no name for it before 3.14."""

_CHUNK_BYTES: Final = 2 << 20
"""Taken in one call, for whose time the system locks the address space; the size of a large page."""

_MOST_WAITING: Final = 64


class Prefaulter:
    """A thread that takes memory for parts of reserved tensors. It writes nothing, so others may write there meanwhile.

    A part that it is asked for while too many wait, or on a system that cannot do it, is left as it is: whoever writes
    there first waits for its pages then.
    """

    def __init__(self) -> None:
        self._waiting: queue.Queue[tuple[torch.Tensor, int, int]] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._madvise: Any = getattr(ctypes.CDLL(None), "madvise", None)

    def ask(self, tensor: torch.Tensor, begin: int, end: int) -> None:
        """Lets the thread take memory for the bytes of a tensor from `begin` to before `end`. Returns at once.

        The tensor begins with a page, and `begin` and `end` are multiples of the size of one.
        """
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
                size = min(_CHUNK_BYTES - begin % _CHUNK_BYTES, end - begin)
                if self._madvise(ctypes.c_void_p(address + begin), ctypes.c_size_t(size), _MADV_POPULATE_WRITE):
                    self._madvise = None
                begin += size
            del tensor
            waiting.task_done()


PREFAULTER: Final = Prefaulter()
"""That of this process."""
