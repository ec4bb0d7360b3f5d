"""A module as it was at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from ps_service.hosting.pinned import Pinned
from ps_wire.decorators import remote

if TYPE_CHECKING:
    from ps_wire.v1.operations_pb2 import SnapshotPart


class PinnedModule(Pinned):
    """A copy of a module, in evaluation mode. `class_name` is that of the module."""

    def __init__(self, snapshot: str, parts: Sequence[SnapshotPart], module: nn.Module, class_name: str) -> None:
        super().__init__(snapshot, parts)
        self._module: Final = module.eval().requires_grad_(False)
        self._class_name: Final = class_name
        tensors = {id(each): each for each in (*module.parameters(), *module.buffers())}.values()
        self.elements = sum(each.numel() for each in tensors)
        self._nbytes: Final = sum(each.numel() * each.element_size() for each in tensors)

    @property
    def nbytes(self) -> int:
        """As `Pinned.nbytes`."""
        return self._nbytes

    @remote(role="reader")
    def describe(self) -> dict[str, Any]:
        """Its class, and its bytes."""
        return {"class_name": self._class_name, "bytes": self.nbytes}

    @remote(role="reader")
    def read(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the module's `forward`, without a graph."""
        with torch.no_grad():
            return self._module(*args, **kwargs)

    @remote(role="bulk")
    def state(self) -> dict[str, Any]:
        """Its parameters and buffers."""
        return dict(self._module.state_dict())
