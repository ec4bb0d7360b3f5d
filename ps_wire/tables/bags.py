"""Bags of ids, as `torch.nn.functional.embedding_bag` takes them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from ps_wire.errors import InvalidArgumentError
from ps_wire.shown import shown

MODES = ("sum", "mean", "max")
"""How the rows of a bag are pooled."""


class Bags(NamedTuple):
    """Bags of ids, int64 [n]: how many each has, int64 [bags], and what their rows are multiplied with, None for 1."""

    ids: torch.Tensor
    counts: torch.Tensor
    weights: torch.Tensor | None

    @property
    def offsets(self) -> torch.Tensor:
        """Where each bag begins, int64 [bags]."""
        return self.counts.cumsum(0) - self.counts

    def some(self, chosen: torch.Tensor, counts: torch.Tensor | None = None) -> Bags:
        """The same bags with only the chosen ones of their ids, bool [n]; `counts` says how many of each, if known."""
        # Numpy finds the positions ten times as fast as torch.
        positions = np.flatnonzero(chosen.numpy())
        if counts is None:
            before = np.zeros(len(chosen) + 1, np.int64)
            np.cumsum(chosen.numpy(), out=before[1:])
            counts = torch.from_numpy(np.diff(before.take(self.counts.cumsum(0).numpy()), prepend=0))
        weights = None if self.weights is None else self.weights[torch.from_numpy(positions)]
        return Bags(torch.from_numpy(self.ids.numpy().take(positions)), counts, weights)

    def split(self, places: torch.Tensor, parts: int) -> list[Bags]:
        """The same bags with the ids of each part only; `places` has the part of each id, int64 [n], from 0."""
        made: list[Bags] = []
        left = self.counts
        for part in range(parts):
            chosen = torch.from_numpy(places.numpy() == part)
            # The last part has what the others leave.
            made.append(self.some(chosen, left if part == parts - 1 else None))
            left = left - made[-1].counts
        return made


def checked_ids(ids: torch.Tensor, rows: int | None, name: str) -> torch.Tensor:
    """The ids, int64 or int32 of any shape, as int64 on the CPU."""
    if not isinstance(ids, torch.Tensor) or ids.dtype not in (torch.int64, torch.int32):
        kind = ids.dtype if isinstance(ids, torch.Tensor) else type(ids).__name__
        raise InvalidArgumentError(f"the ids of table {name!r} are a tensor of int64 or int32, not {kind}")
    if ids.layout is not torch.strided or ids.is_meta:
        raise InvalidArgumentError(f"the ids of table {name!r} are a dense tensor with values")
    found = ids.detach().to("cpu", torch.int64)
    if rows is not None and found.numel():
        low, high = found.aminmax()
        if low < 0 or high >= rows:
            wrong = int(low) if low < 0 else int(high)
            raise InvalidArgumentError(
                f"table {name!r} has the rows 0 to {rows - 1}, and {wrong} is not one of them; a table that is made "
                "without rows= takes any id"
            )
    return found


def check_mode(mode: str) -> None:
    """Raises `InvalidArgumentError` if there is no such mode of pooling."""
    if mode not in MODES:
        raise InvalidArgumentError(f"the rows of a bag are pooled by one of {', '.join(MODES)}, not {shown(mode)}")


def make_bags(
    ids: torch.Tensor,
    offsets: torch.Tensor | None,
    mode: str,
    weights: torch.Tensor | None,
    include_last_offset: bool,
    padding_idx: int | None,
) -> Bags:
    """Bags of checked ids; arguments and errors as for `Table.bag`."""
    check_mode(mode)
    if weights is not None:
        _check_weights(ids, weights, mode)
    if ids.dim() == 2:
        if offsets is not None:
            raise InvalidArgumentError("ids of two dimensions are bags of one size, so they need no offsets")
        bags, size = ids.shape
        counts = torch.full((bags,), size, device="cpu")
        made = Bags(ids.reshape(-1), counts, None if weights is None else weights.reshape(-1))
    elif ids.dim() == 1 and offsets is not None:
        made = _with_offsets(ids, offsets, weights, include_last_offset)
    else:
        raise InvalidArgumentError("the ids of bags have one dimension, and offsets, or two dimensions")
    if padding_idx is not None:
        is_id = isinstance(padding_idx, int) and not isinstance(padding_idx, bool)
        if not is_id or not -(1 << 63) <= padding_idx < 1 << 63:
            raise InvalidArgumentError(f"padding_idx is an id, an int64, and not {shown(padding_idx)}")
        chosen = made.ids != padding_idx
        if not chosen.all():
            made = made.some(chosen)
    return made


def _with_offsets(
    ids: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None, include_last_offset: bool
) -> Bags:
    if not isinstance(offsets, torch.Tensor) or offsets.dtype not in (torch.int64, torch.int32) or offsets.dim() != 1:
        raise InvalidArgumentError("offsets are a tensor of int64 or int32 with one dimension")
    if offsets.layout is not torch.strided or offsets.is_meta:
        raise InvalidArgumentError("offsets are a dense tensor with values")
    bounds = offsets.detach().to("cpu", torch.int64)
    if len(bounds) and int(bounds[0]) != 0:
        raise InvalidArgumentError(f"the first bag begins at offset 0, not {int(bounds[0])}")
    if not include_last_offset:
        bounds = torch.cat((bounds, torch.tensor([len(ids)], device="cpu")))
    elif not len(bounds):
        raise InvalidArgumentError("with include_last_offset there is at least one offset, the end of the last bag")
    counts = bounds.diff()
    end = int(bounds[-1]) if len(counts) else 0
    if end > len(ids) or (len(counts) and int(counts.min()) < 0):
        raise InvalidArgumentError(f"offsets never fall, and are at most {len(ids)}, the number of ids")
    return Bags(ids[:end], counts, None if weights is None else weights[:end])


def _check_weights(ids: torch.Tensor, weights: torch.Tensor, mode: str) -> None:
    if mode != "sum":
        raise InvalidArgumentError(f"per_sample_weights go with mode='sum' only, not {shown(mode)}")
    if not isinstance(weights, torch.Tensor) or not weights.is_floating_point() or weights.shape != ids.shape:
        raise InvalidArgumentError("per_sample_weights are floating point numbers in the shape of the ids")
