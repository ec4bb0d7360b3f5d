"""The messages of gradients, which are the same from step to step: only the bytes of the tensors differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import torch

from ps_wire.codec.values import Encoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ps_service.training.optimizers import HostedOptimizer
    from ps_wire.codec.payload import PayloadWriter
    from ps_wire.v1.values_pb2 import Value

_PLAIN: Final = frozenset((torch.float32, torch.float64, torch.float16, torch.int64))


class GradientForms:
    """Encodes the gradients of optimizers as `Encoder` does, in half of the time where they have the dtypes and shapes
    of the step before. It is used by one thread at a time."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[HostedOptimizer, tuple[list[Any], bytes]] = WeakKeyDictionary()

    def encode(
        self, optimizer: HostedOptimizer, gradients: Sequence[torch.Tensor], message: Value, payload: PayloadWriter
    ) -> None:
        """Encodes the gradients of a step as a list into an empty message."""
        chunks: list[memoryview] = []
        # Offsets are part of the message.
        form = None if payload.nbytes else _form(gradients, chunks)
        known = None if form is None else self._known.get(optimizer)
        if known is not None and known[0] == form:
            message.MergeFromString(known[1])
            for each in chunks:
                payload.add(each)
            return
        Encoder(payload).encode_into(message, list(gradients))
        if form is not None:
            self._known[optimizer] = form, message.SerializeToString()


def _form(gradients: Sequence[torch.Tensor], chunks: list[memoryview]) -> list[Any] | None:
    """What the message of gradients depends on, besides offsets; adds their bytes to the chunks. None if that is more
    than dtypes and shapes."""
    form: list[Any] = []
    for each in gradients:
        if type(each) is not torch.Tensor or each.requires_grad:
            return None
        parts = (each,)
        if each.layout is torch.sparse_coo:
            form += (each.shape, each.is_coalesced())
            parts = (each._indices(), each._values())  # type: ignore[assignment]
        elif each.layout is not torch.strided:
            return None
        for part in parts:
            dtype = part.dtype
            if dtype not in _PLAIN or not (part.is_cpu and part.is_contiguous() and part.numel()) or part.is_neg():
                return None
            form += (dtype, part.shape)
            chunks.append(part.numpy().data.cast("B"))
    return form
