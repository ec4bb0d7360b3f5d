"""Sign: one bit for each element, and the mean magnitude of each block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ps_wire.compression import checks
from ps_wire.compression.codec import Codec, State, vector, work_dtype
from ps_wire.compression.pieces import blocks_in, pieces, scratch_for
from ps_wire.numbers import check_whole


@dataclass(frozen=True)
class Sign(Codec):
    """One bit for each element, packed, and one float (float64 for float64 tensors, else float32) for each block.

    For each block of n elements: s = ||x||_1 / n, y = s where x >= 0 and -s elsewhere. So ||y - x||^2 =
    ||x||^2 - ||x||_1^2 / n, which is below ||x||^2 unless x is 0. NaN, infinity, and blocks whose ||x||_1 overflows
    are refused by `encode`. Dense tensors. It needs error feedback to converge.

    Sources: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014; Karimireddy et al., "Error Feedback
    Fixes SignSGD", ICML 2019, for the scale; Zheng et al., "Communication-Efficient Distributed Blockwise Momentum SGD
    with Error-Feedback", NeurIPS 2019, for blocks.

    Args:
        block: Elements that share a scale, a multiple of 8.

    Raises:
        InvalidArgumentError: `block` is not from 8 to 2^30, or no multiple of 8.
    """

    block: int = 2048

    name = "sign"

    def __post_init__(self) -> None:
        check_whole("block", self.block, 8, 1 << 30)
        check_whole("the rest of block divided by 8", self.block % 8, 0, 0)

    def _encode(self, values: torch.Tensor, state: State) -> Sequence[torch.Tensor]:
        flat = vector(values)
        numel, work = flat.numel(), work_dtype(flat.dtype)
        scales = torch.empty(blocks_in(numel, self.block), dtype=work)
        packed = torch.empty(blocks_in(numel, 8), dtype=torch.uint8)
        scratch = scratch_for(numel, self.block, work)
        is_positive = scratch_for(numel, self.block, torch.bool)
        target = packed.numpy()
        for start, end, blocks, shape in pieces(numel, self.block):
            part = flat[start:end]
            held = scratch[: end - start].view(shape)
            positive = is_positive[: end - start]
            torch.ge(part, 0, out=positive)
            target[start // 8 : blocks_in(end, 8)] = np.packbits(positive.numpy())
            held.copy_(part.view(shape))
            scale = held.abs_().mean(1)
            checks.refuse_non_finite(math.isfinite(scale.max().item()), self.name)
            scales[blocks] = scale
        return packed, scales

    def _decode(self, parts: Sequence[torch.Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        checks.number_of(parts, 2, self.name)
        numel, work = torch.Size(shape).numel(), work_dtype(dtype)
        packed = checks.flat(parts[0], torch.uint8, blocks_in(numel, 8), "the bits of sign").numpy()
        scales = checks.flat(parts[1], work, blocks_in(numel, self.block), "the scales of sign")
        checks.finite_scales(scales)
        result = torch.empty(numel, dtype=dtype)
        scratch = scratch_for(numel, self.block, work)
        for start, end, blocks, rows in pieces(numel, self.block):
            held = scratch[: end - start].view(rows)
            bits = np.unpackbits(packed[start // 8 : blocks_in(end, 8)], count=end - start)
            held.copy_(torch.from_numpy(bits).view(rows)).mul_(2).sub_(1)
            result[start:end].view(rows).copy_(held.mul_(scales[blocks].unsqueeze(1)))
        return result.view(shape)
