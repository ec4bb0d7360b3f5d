"""Results that stay on the owner until later calls take them as arguments, by value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from ps_service.memory import held
from ps_wire.codec.trees import leaves_in, tensors_in
from ps_wire.errors import InvalidArgumentError
from ps_wire.refs import Ref

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ps_service.engine import Engine
    from ps_service.hosting.objects import HostedObject

_LEAVES: Final = (
    *(torch.Tensor, torch.dtype, torch.device, type(None)),
    *(bool, int, float, str, bytes, bytearray, np.generic),
)
"""Types of values, besides containers, that can be sent in full."""


def check(result: Any) -> None:
    """Checks that a result can be an argument of later calls by value.

    Raises:
        InvalidArgumentError: It holds something that is not sent by value, such as a reference to an object.
    """
    if isinstance(result, torch.Tensor):
        return
    for leaf in leaves_in(result):
        if not isinstance(leaf, _LEAVES):
            raise InvalidArgumentError(
                f"the result holds a {type(leaf).__name__}, which is not sent by value: await the result, and then "
                "make it an argument"
            )


def find(engine: Engine, object_id: str) -> HostedObject:
    """A result that stays on this owner.

    Raises:
        StaleHandleError: It is gone.
        InvalidArgumentError: The id is that of another kind of object.
    """
    hosted = engine.registry.find(Ref(engine.name, object_id))
    if hosted.bound_copies is not None:
        raise InvalidArgumentError(f"{hosted} is a module and not a result: send its handle")
    check(hosted.value)
    return hosted


def nbytes(engine: Engine, object_ids: Iterable[str]) -> int:
    """The bytes of the tensors of some results.

    Raises:
        StaleHandleError, InvalidArgumentError: As `find`.
    """
    found = (find(engine, object_id).value for object_id in object_ids)
    return sum(held.size(tensor) for value in found for tensor in tensors_in(value))


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A row-major copy without a history, as if the tensor had been sent: hosted code may write to its arguments."""
    tensor = tensor.detach()
    if tensor.layout is torch.strided:
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor.clone()
