"""Lets torch's functions of vectors know the processor before several threads call them.

Torch has oneMKL compute `sqrt`, `exp` and others of contiguous tensors. At the first call in a process, oneMKL 2024
keeps the number of the processor in a variable, and then another number that stands for it in its tables. A thread that
finds the first one there calls the function for other processors with the least accuracy: its results are wrong in the
fourth digit, without a word (https://github.com/pytorch/pytorch/issues/188792).
"""

from __future__ import annotations

import threading
from typing import Final

import torch

_SETTLING: Final = threading.Lock()
_settled = False


def settle() -> None:
    """Makes that call, in well under a millisecond. Later calls do nothing. All functions have the same variable."""
    global _settled
    with _SETTLING:
        if not _settled:
            torch.ones(1, device="cpu").sqrt()
            _settled = True
