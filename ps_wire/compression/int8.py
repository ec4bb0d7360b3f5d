"""Int8: every block of elements is scaled to the integers from -127 to 127."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from ps_wire.compression import checks
from ps_wire.compression.codec import Codec, State, vector, work_dtype
from ps_wire.compression.pieces import blocks_in, pieces, scratch_for
from ps_wire.numbers import check_whole

_LARGEST = 127


@dataclass(frozen=True)
class Int8(Codec):
    """One byte for each element, and one float (float64 for float64 tensors, else float32) for each block.

    For each block: s = max(max|x| / 127, smallest normal number), q = round(x / s), y = q s. So |y - x| <= s / 2, up to
    rounding of the float arithmetic and of the dtype of the result. NaN and infinity are refused by `encode`. Dense
    and sparse tensors.

    Source: Dettmers et al., "8-bit Optimizers via Block-wise Quantization", ICLR 2022, with linear instead of dynamic
    quantization.

    Args:
        block: Elements that share a scale.

    Raises:
        InvalidArgumentError: `block` is not from 1 to 2^30.
    """

    block: int = 256

    name = "int8"
    takes_sparse = True

    def __post_init__(self) -> None:
        check_whole("block", self.block, 1, 1 << 30)

    def _encode(self, values: torch.Tensor, state: State) -> Sequence[torch.Tensor]:
        flat = vector(values)
        numel, work = flat.numel(), work_dtype(flat.dtype)
        scales = torch.empty(blocks_in(numel, self.block), dtype=work)
        integers = torch.empty(numel, dtype=torch.int8)
        scratch = scratch_for(numel, self.block, work)
        least, most = torch.finfo(work).tiny, _most(work)
        for start, end, blocks, shape in pieces(numel, self.block):
            part, held = flat[start:end].view(shape), scratch[: end - start].view(shape)
            # Not aminmax(): with a dimension it takes ten times as long.
            scale = held.copy_(part).abs_().amax(1).div_(_LARGEST)
            if not math.isfinite(scale.sum().item()):
                checks.refuse_non_finite(checks.finite(part), self.name)
            scale.clamp_(least, most)
            scales[blocks] = scale
            integers[start:end].view(shape).copy_(torch.div(part, scale.unsqueeze(1), out=held).round_())
        return integers, scales

    def _decode(self, parts: Sequence[torch.Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        checks.number_of(parts, 2, self.name)
        numel, work = torch.Size(shape).numel(), work_dtype(dtype)
        integers = checks.flat(parts[0], torch.int8, numel, "the integers of int8")
        scales = checks.flat(parts[1], work, blocks_in(numel, self.block), "the scales of int8")
        checks.finite_scales(scales)
        result = torch.empty(numel, dtype=dtype)
        scratch = scratch_for(numel, self.block, work)
        for start, end, blocks, rows in pieces(numel, self.block):
            held = scratch[: end - start].view(rows)
            held.copy_(integers[start:end].view(rows))
            result[start:end].view(rows).copy_(held.mul_(scales[blocks].unsqueeze(1)))
        return result.view(shape)


@cache
def _most(work: torch.dtype) -> float:
    """The largest scale whose largest multiple is finite."""
    most = torch.tensor(torch.finfo(work).max, dtype=work)
    return float(torch.nextafter(most / _LARGEST, torch.zeros((), dtype=work)))
