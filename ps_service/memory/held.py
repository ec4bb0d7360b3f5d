"""Held: how many bytes each trainer's open passes, and the results that it leaves here, hold on an owner."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, Final
from weakref import WeakValueDictionary

import torch

from ps_service.memory.available import half_of_memory
from ps_wire.codec.trees import tensors_in
from ps_wire.errors import OverloadedError
from ps_wire.limits import Limits

_MOST_UNSETTLED: Final = 4096
"""So many changes are added up at the latest."""


class Held:
    """Bytes that are held for one trainer. Safe from several threads.

    Tensors that share a storage count once. What counts does so for as long as its `Share` lives: how many bytes that
    ends with is told by finalizers, which run at any moment and in any thread. So changes are noted without a lock, and
    added up by whoever asks for the sum.
    """

    __slots__ = ("__weakref__", "_adding_up", "_changes", "_shares", "_total")

    def __init__(self) -> None:
        # Its `append` and `popleft` are atomic.
        self._changes: deque[int] = deque()
        self._shares: WeakValueDictionary[int, Share] = WeakValueDictionary()
        self._total = 0
        self._adding_up = threading.Lock()

    @property
    def nbytes(self) -> int:
        """How many there are."""
        with self._adding_up:
            while self._changes:
                self._total += self._changes.popleft()
            return self._total

    def share(self, storage: torch.UntypedStorage) -> Share:
        """Counts a storage for as long as the result lives, and no more than once."""
        key, nbytes = storage.data_ptr(), storage.nbytes()
        known = self._shares.get(key)
        # A share may outlive its storage; what has come to the same address since is another.
        if known is not None and known.nbytes == nbytes:
            return known
        made = self._shares[key] = Share(self, nbytes)
        if len(self._changes) > _MOST_UNSETTLED:
            _ = self.nbytes
        return made

    def shares(self, value: Any) -> list[Share]:
        """Counts all tensors in a value for as long as the results live."""
        return [self.share(storage) for tensor in tensors_in(value) for storage in storages(tensor)]

    def note(self, nbytes: int) -> None:
        """So many more are held, or less. Takes no lock."""
        self._changes.append(nbytes)


class Share:
    """Some bytes that count for as long as it lives.

    Args:
        held: Where they count.
        nbytes: How many.

    Attributes:
        nbytes: How many.
    """

    __slots__ = ("__weakref__", "_held", "nbytes")

    def __init__(self, held: Held, nbytes: int = 0) -> None:
        self.nbytes = nbytes
        self._held = held
        held.note(nbytes)

    def resize(self, nbytes: int) -> None:
        """From now on there are so many."""
        if nbytes != self.nbytes:
            self._held.note(nbytes - self.nbytes)
            self.nbytes = nbytes

    def __del__(self) -> None:
        self._held.note(-self.nbytes)


class HeldByAll:
    """What is held for all trainers of an owner.

    Args:
        limits: Among them how much that may be for each.

    Attributes:
        refusals: How many calls were refused because their trainer held too much.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.refusals = 0
        self._limit = (limits or Limits()).max_context_bytes or half_of_memory()
        self._lock = threading.Lock()
        # Each lives as long as what counts there.
        self._of: WeakValueDictionary[bytes, Held] = WeakValueDictionary()

    @property
    def nbytes(self) -> int:
        """How many bytes all trainers hold."""
        return sum(held.nbytes for held in list(self._of.values()))

    def of(self, trainer: bytes) -> Held:
        """What is held for one of them."""
        with self._lock:
            held = self._of.get(trainer)
            if held is None:
                held = self._of[trainer] = Held()
            return held

    def check(self, trainer: bytes) -> None:
        """Asks whether a trainer may begin to hold more.

        Raises:
            OverloadedError: It holds too much already.
        """
        held = self._of.get(trainer)
        nbytes = 0 if held is None else held.nbytes
        if nbytes >= self._limit:
            self.refusals += 1
            raise OverloadedError(
                f"open contexts of this session, and results that it left here, hold {nbytes:,} bytes; the limit is "
                f"{self._limit:,}. End contexts or run their backward, drop handles of results, use smaller batches, "
                "or raise max_context_bytes on the owner"
            )


def storages(tensor: torch.Tensor) -> Iterator[torch.UntypedStorage]:
    """The storages in which the numbers of a tensor are, of any layout that has some."""
    for part in parts(tensor):
        yield part.untyped_storage()


def parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The dense tensors of which a tensor consists."""
    if tensor.layout is torch.strided:
        return (tensor,)
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return ()


def size(tensor: torch.Tensor) -> int:
    """Bytes of the elements of a tensor, of any layout."""
    return sum(part.nbytes for part in parts(tensor))
