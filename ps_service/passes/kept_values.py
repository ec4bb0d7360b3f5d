"""Results that stay on the owner until later calls take them as arguments, by value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from ps_service.memory import held
from ps_wire.codec.trees import mapped, tensors_in
from ps_wire.errors import InvalidArgumentError
from ps_wire.refs import Ref

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ps_service.hosting.host import Host
    from ps_service.hosting.objects import HostedObject

_AS_THEY_ARE: Final = frozenset((bool, int, float, str, bytes, type(None), torch.dtype, torch.device))
"""Types of values, besides tensors and containers, that arrive as they are sent."""


def unchanged(value: Any) -> Any:
    """The value itself."""
    return value


def by_value(result: Any, change: Callable[[torch.Tensor], torch.Tensor] = unchanged) -> Any:
    """A copy of a result with the types that its parts have once they were sent, such as float for a numpy.float32.
    `change` makes the tensors of the copy, which are otherwise the same. What is not sent by value, such as a reference
    to an object, is an `InvalidArgumentError`."""
    return mapped(result, change, _as_sent)


def _as_sent(value: Any) -> Any:
    """What a value that is no tensor and no container is once it was sent."""
    if type(value) in _AS_THEY_ARE or isinstance(value, torch.device):
        return value
    match value:
        case np.bool_():
            return bool(value)
        case int() | np.integer():
            return int(value)
        case float() | np.floating():
            return float(value)
        case str():
            return str.__str__(value)  # that of a subclass may be another text
        case bytes() | bytearray():
            return bytes(value)
        case _:
            raise InvalidArgumentError(
                f"the result holds a {type(value).__name__}, which is not sent by value: await the result, and then "
                "make it an argument"
            )


def find(engine: Host, object_id: str) -> HostedObject:
    """A result that stays on this owner. Raises `StaleHandleError` if it is gone, and `InvalidArgumentError` if the id
    is that of another kind of object."""
    hosted = engine.registry.find(Ref(engine.name, object_id))
    if hosted.is_module:
        raise InvalidArgumentError(f"{hosted} is a module and not a result: send its handle")
    by_value(hosted.value)
    return hosted


def nbytes(engine: Host, object_ids: Iterable[str]) -> int:
    """The bytes of the tensors of some results. Raises as `find`."""
    found = (find(engine, object_id).value for object_id in object_ids)
    return sum(held.size(tensor) for value in found for tensor in tensors_in(value))


def copied(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A row-major copy without a history, as if the tensor had been sent: hosted code may write to its arguments."""
    tensor = tensor.detach()
    if tensor.device != device:
        tensor = tensor.to(device)
    if tensor.layout is torch.strided:
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor.clone()
