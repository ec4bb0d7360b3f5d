"""Applies the caller's autocast and seed while a request runs."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_wire.codec import dtypes
from ps_wire.errors import InvalidArgumentError
from ps_wire.numerics.autocast import Autocast, Autocasts
from ps_wire.numerics.random import Seeded
from ps_wire.numerics.seeds import Seeds
from ps_wire.runtime.scopes import current_scope

if TYPE_CHECKING:
    from ps_wire.v1 import operations_pb2 as pb

_CAST_TO: Final = (torch.bfloat16, torch.float16)


def numerics_of(request: Any) -> AbstractContextManager[object]:
    """The caller's autocast and seed. Raises `InvalidArgumentError` if torch has no autocast of that kind."""
    if not request.HasField("numerics"):
        return nullcontext()
    message: pb.Numerics = request.numerics
    regions = [_region(each) for each in message.autocast]
    here = tuple(each for each in regions if each.device == "cpu" or torch.cuda.is_available())
    stack = ExitStack()
    # Torch has one cache of casts for the process, by parameter alone: another call would find those of this one, of
    # another dtype too.
    stack.enter_context(Autocasts(here, cached=False).entered())
    if message.HasField("seed"):
        scope = current_scope.get()
        if scope is not None:
            scope.seeds = Seeds(message.seed)
        stack.enter_context(Seeded(message.seed))
    return stack


def _region(message: pb.Autocast) -> Autocast:
    dtype = dtypes.from_wire(message.dtype)
    if message.device not in ("cpu", "cuda") or dtype not in _CAST_TO:
        raise InvalidArgumentError(f"there is no autocast of {message.device!r} to {dtype}")
    return Autocast(message.device, dtype)
