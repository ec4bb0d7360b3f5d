"""A module as it was at one moment."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_service.hosting.pinned import Pinned
from ps_wire.decorators import remote

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from ps_service.hosting.pinned import SnapshotMark

_EXAMINED: Final = 4
"""Calls after which a module whose parameters have stayed is known not to write to them."""


class PinnedModule(Pinned):
    """A copy of a module, in evaluation mode. `class_name` is that of the module. Its code may change what it is called
    on, such as buffers and attributes, so each call has a copy of its own. That has its own parameters, too, unless the
    first calls have left these as they were; and if it `is_layer`, made of layers of torch alone, there is no copy. If
    a later call writes to the parameters after all, the module is not what it was, and is not read any more. Writes
    behind torch's back (`.data`, numpy's views) are noticed in the first calls alone."""

    def __init__(self, snapshot: SnapshotMark, module: nn.Module, class_name: str, is_layer: bool) -> None:
        super().__init__(snapshot)
        self._module: Final = module.eval().requires_grad_(False)
        self._class_name: Final = class_name
        self._is_layer: Final = is_layer
        self._parameters: Final = list(module.parameters())
        self._versions: Final = _versions(self._parameters)
        self._examined = 0
        self._writes = False
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
            if self._is_layer:
                return self._module(*args, **kwargs)
            if self._examined >= _EXAMINED and not self._writes:
                return self._read_on_shared_parameters(*args, **kwargs)
            own = copy.deepcopy(self._module)
            result = own(*args, **kwargs)
            self._examine(own)
            return result

    def _read_on_shared_parameters(self, *args: Any, **kwargs: Any) -> Any:
        self._check_parameters()
        result = copy.deepcopy(self._module, {id(each): each for each in self._parameters})(*args, **kwargs)
        self._check_parameters()
        return result

    def _check_parameters(self) -> None:
        if _versions(self._parameters) != self._versions:
            raise RuntimeError(
                f"the forward of this module has written to its parameters, and did not in its first {_EXAMINED} "
                f"calls: snapshot {self.snapshot.name!r} does not have it as it was any more, and has to be made again"
            )

    def _examine(self, own: nn.Module) -> None:
        """Looks whether a call has written to the parameters of its copy."""
        if not self._writes:
            now = list(own.parameters())
            are_same = len(now) == len(self._parameters) and all(map(torch.equal, now, self._parameters))
            self._writes, self._examined = not are_same, self._examined + 1

    @remote(role="bulk")
    def state(self) -> dict[str, Any]:
        """Its parameters and buffers."""
        self._check_parameters()
        return dict(self._module.state_dict())


def _versions(tensors: Iterable[torch.Tensor]) -> list[int]:
    """How often torch has written to each."""
    return [each._version for each in tensors]
