"""Fewer bits for each element: FP16 and BF16 round it, Int8 and Sign scale it, each block of elements by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
import torch

from ps_wire.compression import checks
from ps_wire.compression.codec import Codec, State, vector, work_dtype
from ps_wire.compression.pieces import blocks_in, pieces, scratch_for
from ps_wire.errors import InvalidArgumentError
from ps_wire.numbers import check_whole

_LARGEST = 127


class _Cast(Codec):
    """Casts to another dtype and back. Dense and sparse."""

    takes_sparse = True
    sent_as: ClassVar[torch.dtype]

    def _encode(self, values: torch.Tensor, state: State) -> Sequence[torch.Tensor]:
        # The cast first: it halves what a copy from another device carries.
        cast = values.to(self.sent_as, copy=True).cpu()
        return (cast.reshape(-1).contiguous(),)

    def _decode(self, parts: Sequence[torch.Tensor], shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        checks.number_of(parts, 1, self.name)
        found = checks.flat(parts[0], self.sent_as, shape.numel(), f"what {self.name} encodes")
        return found.to(dtype).view(shape)


@dataclass(frozen=True)
class FP16(_Cast):
    """IEEE half precision: 2 bytes for each element, of which 11 bits are the significand.

    y = round_to_nearest_even(x). |y - x| <= 2^-11 |x| for 2^-14 <= |x| <= 65504, and |y - x| <= 2^-25 below.
    Magnitudes from 65520 become infinite, and NaN and infinity stay what they are, so an owner that refuses
    non-finite gradients sees them. Dense and sparse tensors.

    Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018. Range and rounding are those of IEEE 754.
    """

    name = "fp16"
    sent_as = torch.float16


@dataclass(frozen=True)
class BF16(_Cast):
    """bfloat16: 2 bytes for each element, of which 8 bits are the significand, with the range of float32.

    y = round_to_nearest_even(x). |y - x| <= 2^-8 |x| for 2^-126 <= |x| <= 3.38e38, and |y - x| <= 2^-134 below.
    NaN and infinity stay what they are. Dense and sparse tensors.

    Source: Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", 2019.
    """

    name = "bf16"
    sent_as = torch.bfloat16


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
        scales = torch.empty(blocks_in(numel, self.block), dtype=work, device="cpu")
        integers = torch.empty(numel, dtype=torch.int8, device="cpu")
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

    def _decode(self, parts: Sequence[torch.Tensor], shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        checks.number_of(parts, 2, self.name)
        numel, work = shape.numel(), work_dtype(dtype)
        integers = checks.flat(parts[0], torch.int8, numel, "the integers of int8")
        scales = checks.flat(parts[1], work, blocks_in(numel, self.block), "the scales of int8")
        return _scaled(scales, self.block, shape, dtype, lambda start, end: integers[start:end])


@cache
def _most(work: torch.dtype) -> float:
    """The largest scale whose largest multiple is finite."""
    most = torch.tensor(torch.finfo(work).max, dtype=work, device="cpu")
    return float(torch.nextafter(most / _LARGEST, torch.zeros((), dtype=work, device="cpu")))


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
        scales = torch.empty(blocks_in(numel, self.block), dtype=work, device="cpu")
        packed = torch.empty(blocks_in(numel, 8), dtype=torch.uint8, device="cpu")
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

    def _decode(self, parts: Sequence[torch.Tensor], shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        checks.number_of(parts, 2, self.name)
        numel, work = shape.numel(), work_dtype(dtype)
        packed = checks.flat(parts[0], torch.uint8, blocks_in(numel, 8), "the bits of sign").numpy()
        scales = checks.flat(parts[1], work, blocks_in(numel, self.block), "the scales of sign")

        def signs(start: int, end: int) -> torch.Tensor:
            bits = np.unpackbits(packed[start // 8 : blocks_in(end, 8)], count=end - start)
            return torch.from_numpy(bits).view(torch.int8).mul_(2).sub_(1)

        return _scaled(scales, self.block, shape, dtype, signs)


def _scaled(
    scales: torch.Tensor,
    block: int,
    shape: torch.Size,
    dtype: torch.dtype,
    integers: Callable[[int, int], torch.Tensor],
) -> torch.Tensor:
    """Blocks of integers times their scales. `integers` has those from one position to another."""
    numel = shape.numel()
    if scales.numel() and not (checks.finite(scales) and scales.min().item() >= 0):
        raise InvalidArgumentError("a scale is negative or not finite")
    result = torch.empty(numel, dtype=dtype, device="cpu")
    scratch = scratch_for(numel, block, scales.dtype)
    for start, end, blocks, rows in pieces(numel, block):
        held = scratch[: end - start].view(rows)
        held.copy_(integers(start, end).view(rows))
        result[start:end].view(rows).copy_(held.mul_(scales[blocks].unsqueeze(1)))
    return result.view(shape)
