"""Which owner has which rows of a table: every id belongs to one of 16,384 slots, and every slot to one owner."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from ps_wire.errors import InvalidArgumentError
from ps_wire.tables.hashing import FIRST, SECOND

SLOTS: Final = 16_384
"""Number of slots of a table, the same for every table and number of owners."""

_SHIFT: Final = np.uint64(64 - (SLOTS.bit_length() - 1))
_S30, _S27 = np.uint64(30), np.uint64(27)
_FIRST, _SECOND = np.uint64(FIRST), np.uint64(SECOND)


def slots_of(ids: torch.Tensor) -> torch.Tensor:
    """The slot of each id, int64 in the shape of the ids, so that they index a tensor of owners directly: the highest
    14 bits of its mix (`ps_wire.tables.hashing.mix`)."""
    words = ids.reshape(-1).numpy().view(np.uint64)
    # The same steps as in `mix`, with one array for what is shifted. Its last step changes only the lower bits.
    mixed = words >> _S30
    shifted = np.empty_like(mixed)
    mixed ^= words
    mixed *= _FIRST
    mixed ^= np.right_shift(mixed, _S27, out=shifted)
    mixed *= _SECOND
    mixed >>= _SHIFT
    return torch.from_numpy(mixed.view(np.int64)).view(ids.shape)


CLOSED: Final = -1
"""The mark of a table that is closed for a moment, which no routing has."""

LONGEST_CLOSED: Final = 10.0
"""The most seconds for which a table may be closed."""

_NO_MARKS: Final[Mapping[str, int]] = {}


class Routing(NamedTuple):
    """The owners of a table, and for each slot the position of its owner among them, int64 [SLOTS]. Owners and trainers
    of the table keep one each. `version` counts the changes, from 1.

    `moves` counts for each slot how often it has moved from one owner to another, int32 [SLOTS]; None if none has. Of
    two routings that differ about a slot, the one with more moves of it holds. Only the owner of a slot moves it, so no
    two of its moves have the same number. `marks` has for each owner a number above 0 that differs for other slots of
    it; it is empty if no slot has moved.
    """

    version: int
    owners: tuple[str, ...]
    of_slot: torch.Tensor
    moves: torch.Tensor | None = None
    marks: Mapping[str, int] = _NO_MARKS

    @classmethod
    def even(cls, owners: Sequence[str]) -> Routing:
        """The first routing of a new table: contiguous ranges of slots of equal size, in the order of the names."""
        names = tuple(sorted(owners))
        if not names or len(set(names)) < len(names):
            raise InvalidArgumentError(f"the owners of a table are different names, not {list(owners)}")
        return cls(1, names, torch.arange(SLOTS, device="cpu") * len(names) // SLOTS)

    def owner_of(self, ids: torch.Tensor) -> torch.Tensor:
        """The position of the owner of each id among the owners, int64 in the shape of the ids (int64)."""
        if len(self.owners) == 1:
            return torch.zeros_like(ids)
        slots = slots_of(ids).view(-1)
        # Numpy takes from a small array faster than torch.
        return torch.from_numpy(self.of_slot.numpy().take(slots.numpy())).view(ids.shape)

    def mark(self, owner: str) -> int:
        """The number that stands for the slots of an owner, also if no slot has moved."""
        return self.marks.get(owner) or _mark(self.slots(owner))

    def slots(self, owner: str) -> torch.Tensor:
        """The slots of an owner, bool [SLOTS]."""
        if owner not in self.owners:
            return torch.zeros(SLOTS, dtype=torch.bool, device="cpu")
        return self.of_slot == self.owners.index(owner)

    def moved(self, slots: torch.Tensor, to: str) -> Routing:
        """The routing after some slots, bool [SLOTS], have moved to an owner. Owners without slots are left out."""
        names = (*self.owners, to)
        of_slot = torch.where(slots, names.index(to), self.of_slot)
        before = torch.zeros(SLOTS, dtype=torch.int32, device="cpu") if self.moves is None else self.moves
        return _made(self.version + 1, names, of_slot, before + slots.to(torch.int32))

    def merged(self, other: Routing) -> Routing:
        """For each slot what the one of both has that knows more moves of it; `self` if `other` knows nothing new."""
        if other.moves is None:
            return self
        own = torch.zeros_like(other.moves) if self.moves is None else self.moves
        newer = other.moves > own
        if not newer.any():
            return self
        if not (own > other.moves).any():
            return other
        of_slot = torch.where(newer, other.of_slot + len(self.owners), self.of_slot)
        version = max(self.version, other.version) + 1
        return _made(version, (*self.owners, *other.owners), of_slot, torch.maximum(own, other.moves))

    def to_plain(self) -> dict[str, Any]:
        """As a dictionary of plain values and tensors."""
        plain = {"version": self.version, "owners": list(self.owners), "of_slot": self.of_slot.to(torch.int16)}
        return plain if self.moves is None else {**plain, "moves": self.moves}

    @classmethod
    def from_plain(cls, values: Any) -> Routing:
        """The routing of such a dictionary. Raises `InvalidArgumentError` if it describes none."""
        try:
            version, owners, of_slot = int(values["version"]), tuple(map(str, values["owners"])), values["of_slot"]
            of_slot = of_slot.to(torch.int64)
            fits = of_slot.shape == (SLOTS,) and int(of_slot.min()) >= 0 and int(of_slot.max()) < len(owners)
            moves = values.get("moves")
            if moves is not None:
                moves = moves.to(torch.int32)
                fits = fits and moves.shape == (SLOTS,) and int(moves.min()) >= 0
        except (TypeError, KeyError, AttributeError, ValueError, RuntimeError):
            fits = False
        if not fits:
            raise InvalidArgumentError(f"the slots of a table are {SLOTS} positions of owners, with a version")
        return cls(version, owners, of_slot) if moves is None else _made(version, owners, of_slot, moves)


def _made(version: int, names: Sequence[str], of_slot: torch.Tensor, moves: torch.Tensor) -> Routing:
    """A routing in which slots have moved; each owner that has slots is there once, in the order of the names."""
    used = {names[position] for position in of_slot.unique().tolist()}
    owners = tuple(sorted(used))
    positions = torch.tensor([owners.index(each) if each in used else -1 for each in names], device="cpu")
    of_slot = positions[of_slot]
    marks = {owner: _mark(of_slot == position) for position, owner in enumerate(owners)}
    return Routing(version, owners, of_slot, moves, marks)


def _mark(slots: torch.Tensor) -> int:
    digest = hashlib.blake2b(np.packbits(slots.numpy()).tobytes(), digest_size=7).digest()
    return int.from_bytes(digest, "little") | 1
