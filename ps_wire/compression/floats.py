"""FP16 and BF16: every element is rounded to a float of two bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from ps_wire.compression import checks
from ps_wire.compression.codec import Codec, State


class _Cast(Codec):
    """Casts to another dtype and back. Dense and sparse."""

    takes_sparse = True
    sent_as: ClassVar[torch.dtype]

    def _encode(self, values: torch.Tensor, state: State) -> Sequence[torch.Tensor]:
        # The cast first: it halves what a copy from another device carries.
        cast = values.to(self.sent_as, copy=True).cpu()
        return (cast.reshape(-1).contiguous(),)

    def _decode(self, parts: Sequence[torch.Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        checks.number_of(parts, 1, self.name)
        numel = torch.Size(shape).numel()
        return checks.flat(parts[0], self.sent_as, numel, f"what {self.name} encodes").to(dtype).view(shape)


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
