"""Which owner has which rows of a table: every id belongs to one of 16,384 slots, and every slot to one owner."""

from __future__ import annotations

from collections.abc import Sequence
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


class Routing(NamedTuple):
    """The owners of a table, and for each slot the position of its owner among them, int64 [SLOTS]. Every owner of the
    table keeps the same. `version` counts the changes, from 1; of two that differ, the larger one holds."""

    version: int
    owners: tuple[str, ...]
    of_slot: torch.Tensor

    @classmethod
    def even(cls, owners: Sequence[str]) -> Routing:
        """The first routing of a new table: contiguous ranges of slots of equal size, in the order of the names."""
        names = tuple(sorted(owners))
        if not names or len(set(names)) < len(names):
            raise InvalidArgumentError(f"the owners of a table are different names, not {list(owners)}")
        return cls(1, names, torch.arange(SLOTS) * len(names) // SLOTS)

    def owner_of(self, ids: torch.Tensor) -> torch.Tensor:
        """The position of the owner of each id among the owners, int64 in the shape of the ids (int64)."""
        if len(self.owners) == 1:
            return torch.zeros_like(ids)
        slots = slots_of(ids).view(-1)
        # Numpy takes from a small array faster than torch.
        return torch.from_numpy(self.of_slot.numpy().take(slots.numpy())).view(ids.shape)

    def to_plain(self) -> dict[str, Any]:
        """As a dictionary of plain values and one tensor."""
        return {"version": self.version, "owners": list(self.owners), "of_slot": self.of_slot.to(torch.int16)}

    @classmethod
    def from_plain(cls, values: Any) -> Routing:
        """The routing of such a dictionary. Raises `InvalidArgumentError` if it describes none."""
        try:
            version, owners, of_slot = int(values["version"]), tuple(map(str, values["owners"])), values["of_slot"]
            of_slot = of_slot.to(torch.int64)
            fits = of_slot.shape == (SLOTS,) and int(of_slot.min()) >= 0 and int(of_slot.max()) < len(owners)
        except (TypeError, KeyError, AttributeError, ValueError, RuntimeError):
            fits = False
        if not fits:
            raise InvalidArgumentError(f"the slots of a table are {SLOTS} positions of owners, with a version")
        return cls(version, owners, of_slot)
