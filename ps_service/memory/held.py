"""Counts the bytes that each trainer's open passes and stored results hold on an owner."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final
from weakref import WeakValueDictionary, ref

import torch

from ps_service.memory.available import memory
from ps_wire.codec.trees import parts_of
from ps_wire.errors import OverloadedError
from ps_wire.limits import Limits

_MOST_UNSETTLED: Final = 4096
"""Most changes that are noted before they are summed."""

_MOST_KEPT: Final = 32
"""Counters of trainers that hold nothing to keep for their next pass."""


class Held:
    """Counts the bytes held for one trainer, those of a storage once while a `Share` of it lives. Safe in all threads.

    Finalizers subtract bytes, at any moment. So changes are noted without a lock, and summed when the total is read.
    The bytes count for `others`, too, such as all that the identity of the trainer holds.
    """

    __slots__ = ("__weakref__", "_adding_up", "_changes", "_shares", "_total", "note", "others")

    def __init__(self, others: tuple[Held, ...] = ()) -> None:
        # `append` and `popleft` of a deque are atomic.
        self._changes: deque[int] = deque()
        self.note: Callable[[int], None] = self._changes.append if not others else self._note_with_others
        self.others: Final = others
        # By the address of the storage. A WeakValueDictionary takes twice as long.
        self._shares: dict[int, ref[Share]] = {}
        self._total = 0
        self._adding_up = threading.Lock()

    @property
    def nbytes(self) -> int:
        """The bytes held now."""
        with self._adding_up:
            changes = self._changes
            for _ in range(len(changes)):
                self._total += changes.popleft()
            return self._total

    def _note_with_others(self, change: int) -> None:
        self._changes.append(change)
        for each in self.others:
            each.note(change)

    def share(self, storage: torch.UntypedStorage) -> Share:
        """Counts a storage once, for as long as the returned share lives."""
        key, nbytes = storage.data_ptr(), storage.nbytes()
        known = self._shares.get(key)
        if known is not None:
            share = known()
            # A share may outlive its storage; another storage may have the same address by then.
            if share is not None and share.nbytes == nbytes:
                return share
        made = Share(self, nbytes, key)
        made.reference = self._shares[key] = ref(made)
        self._settle()
        return made

    def count(self, nbytes: int) -> Share:
        """Counts a number of bytes for as long as the returned share lives."""
        made = Share(self, nbytes)
        self._settle()
        return made

    def _settle(self) -> None:
        """Sums changes where many are noted."""
        for each in (self, *self.others):
            if len(each._changes) > _MOST_UNSETTLED:
                _ = each.nbytes

    def shares(self, value: Any) -> list[Share]:
        """Counts all tensors in a value for as long as the returned shares live. The value may contain itself."""
        tensors = [part for part in parts_of(value) if isinstance(part, torch.Tensor)]
        return [self.share(storage) for tensor in tensors for storage in storages(tensor)]

    def forget(self, share: Share) -> None:
        """Notes that a share of a storage is freed. Takes no lock."""
        if self._shares.get(share.key) is share.reference:
            self._shares.pop(share.key, None)


class Share:
    """A number of bytes that counts as held for as long as this object lives; of a storage, `key` is the address."""

    __slots__ = ("__weakref__", "_held", "key", "nbytes", "reference")

    def __init__(self, held: Held, nbytes: int = 0, key: int = 0) -> None:
        self.nbytes = nbytes
        self.key = key
        self.reference: ref[Share] | None = None
        self._held = held
        if nbytes:
            held.note(nbytes)

    def resize(self, nbytes: int) -> None:
        """Changes the number of bytes."""
        if nbytes != self.nbytes:
            self._held.note(nbytes - self.nbytes)
            self.nbytes = nbytes

    def __del__(self) -> None:
        if self.nbytes:
            self._held.note(-self.nbytes)
        if self.reference is not None:
            self._held.forget(self)


class HeldByAll:
    """Counts the bytes held for all trainers of an owner, and limits those of each to `max_context_bytes`.

    `refusals` counts the calls that were refused because their trainer held too much. If there are quotas, `others_of`
    has what the bytes that a trainer pays for count for, too, and `check_others` raises if one of those is used up.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.refusals = 0
        self.others_of: Callable[[bytes], tuple[Held, ...]] | None = None
        self.check_others: Callable[[bytes], None] | None = None
        self.limit: Final = (limits or Limits()).max_context_bytes or memory() // 2
        self._lock = threading.Lock()
        # Each lives as long as a share refers to it, or it is among the latest that were made: making one costs as much
        # as a small request, and most passes of a trainer begin when its last has ended.
        self._of: WeakValueDictionary[bytes, Held] = WeakValueDictionary()
        # If there are quotas: those that count for one trainer, and for the quotas of who pays.
        self._paid: WeakValueDictionary[tuple[bytes, bytes], Held] = WeakValueDictionary()
        self._latest: deque[Held] = deque(maxlen=_MOST_KEPT)

    @property
    def nbytes(self) -> int:
        """The bytes that all trainers hold."""
        return sum(held.nbytes for held in list(self._of.values()))

    @property
    def largest(self) -> int:
        """The bytes of the trainer that holds most."""
        return max((held.nbytes for held in list(self._of.values())), default=0)

    def of(self, trainer: bytes, payer: bytes = b"") -> Held:
        """The counter of one trainer, whose bytes count for the quotas of a payer: itself if there is no other."""
        key = trainer, payer or trainer
        others = () if self.others_of is None else self.others_of(key[1])
        with self._lock:
            held = self._of.get(trainer)
            if held is None:
                held = self._of[trainer] = Held()
                self._latest.append(held)
            if not others:
                return held
            paid = self._paid.get(key)
            if paid is None or paid.others[1:] != others:
                paid = self._paid[key] = Held((held, *others))
                self._latest.append(paid)
            return paid

    def nbytes_of(self, trainer: bytes) -> int:
        """The bytes that one trainer holds."""
        held = self._of.get(trainer)
        return 0 if held is None else held.nbytes

    def check(self, trainer: bytes) -> None:
        """Raises `OverloadedError` if a trainer holds more than the limit already, or one of its quotas is used up."""
        self.check_limit(trainer)
        if self.check_others is not None:
            self.check_others(trainer)

    def check_limit(self, trainer: bytes) -> None:
        """Raises `OverloadedError` if a trainer holds more than the limit already."""
        held = self._of.get(trainer)
        nbytes = 0 if held is None else held.nbytes
        if nbytes >= self.limit:
            self.refusals += 1
            raise OverloadedError(
                f"open contexts of this session, and results that it left here, hold {nbytes:,} bytes; the limit is "
                f"{self.limit:,}. End contexts or run their backward, drop handles of results, use smaller batches, "
                "or raise max_context_bytes on the owner"
            )


def storages(tensor: torch.Tensor) -> Iterator[torch.UntypedStorage]:
    """The storages of a tensor's elements, for any layout that has storages."""
    for part in parts(tensor):
        yield part.untyped_storage()


def parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The dense tensors that make up a tensor."""
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
    if tensor.layout is torch.strided:
        return tensor.nbytes
    if tensor.layout is torch.sparse_coo:  # on the way of every step of a sparse table
        return tensor._indices().nbytes + tensor._values().nbytes
    return sum(part.nbytes for part in parts(tensor))
