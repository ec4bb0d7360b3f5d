"""Dtypes that functions and layers compute in when trainers ask for them."""

from __future__ import annotations

from typing import Final

import torch

FLOATING: Final = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
COMPLEX: Final = frozenset({torch.complex64, torch.complex128})
INTEGER: Final = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})

ORDINARY: Final = FLOATING | COMPLEX | INTEGER | {torch.bool}
"""Tensors of other dtypes (quantized, 8-bit floats, partly supported unsigned) can be sent but not computed in."""

SMALLEST: Final = {dtype: torch.iinfo(dtype).min for dtype in INTEGER}
"""The smallest number of each integer type; -1 times it does not fit."""
