"""Arrays of numpy, which travel as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ps_wire.codec.names import name_of
from ps_wire.codec.records import Codec, add
from ps_wire.errors import InvalidArgumentError

Array = npt.NDArray[np.generic]


def to_tensor(array: Array) -> torch.Tensor:
    """A tensor with the shape, dtype and values of an array, in its memory where torch can use that.

    Raises:
        InvalidArgumentError: Torch has no such dtype.
    """
    usable = array.dtype.isnative and array.flags.writeable and all(step >= 0 for step in array.strides)
    try:
        return torch.from_numpy(array if usable else array.astype(array.dtype.newbyteorder("=")))
    except TypeError:
        raise InvalidArgumentError(
            f"a numpy array of dtype {array.dtype} cannot be sent: torch has no such dtype"
        ) from None


def to_array(tensor: Any) -> Array:
    """The array of a tensor, in the memory of the host.

    Raises:
        TypeError: It is no tensor.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"the values of an array are a tensor, not a {type(tensor).__name__}")
    array: Array = tensor.numpy(force=True)
    return array


def register() -> None:
    """Lets arrays be arguments and results."""
    # A tensor of a GPU is copied.
    add(np.ndarray, Codec(name_of(np.ndarray), to_tensor, to_array, is_record=False, copies=True))
