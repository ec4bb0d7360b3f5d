"""Codecs without error feedback: for values that replace those of the receiver, such as pulled parameters, and for
gradients of rows of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ps_wire.compression.quantizers import BF16, FP16, Int8
from ps_wire.compression.registry import Own
from ps_wire.compression.zstd import Zstd
from ps_wire.errors import InvalidArgumentError, NonFiniteGradientError

if TYPE_CHECKING:
    from ps_wire.compression.codec import Codec, Encoded

_SUITABLE = (FP16, BF16, Int8, Zstd, Own)


def check_suitable(codec: Codec) -> None:
    """Checks that a codec sends every element of a parameter, each within a bound of its own, and none later."""
    if not isinstance(codec, _SUITABLE):
        raise InvalidArgumentError(
            f"{codec} leaves most of a gradient to later messages. Pulled values replace parameters, so what it leaves "
            "out would be lost, unless the owner kept a copy of the model for each replica, which it does not. "
            "Compress pulls with BF16, FP16, Int8 or Zstd"
        )


def check_suitable_for_rows(codec: Codec) -> None:
    """Checks that a codec suits gradients of rows of tables: that no error feedback has to bring the rest later."""
    if not isinstance(codec, _SUITABLE):
        raise InvalidArgumentError(
            f"{codec} leaves most of a gradient to later messages, by error feedback. Rows of a table have none: a "
            "residual for each row that a trainer has ever looked up would be a copy of the table there. Compress the "
            "gradients of rows with BF16, FP16, Int8 or Zstd"
        )


def encode(codec: Codec, value: torch.Tensor) -> torch.Tensor | Encoded:
    """What to send for a value: the value itself if the codec does not take it, or would lose what is not finite."""
    if not codec.takes(value):
        return value
    try:
        encoded = codec.encode(value)
    except NonFiniteGradientError:
        return value
    # Magnitudes beyond the range of float16 would become infinite.
    if isinstance(codec, FP16) and not all(bool(torch.isfinite(each).all()) for each in encoded.tensors):
        return value
    return encoded
