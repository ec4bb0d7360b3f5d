"""The autograd leaves that replace the parameters of a module in its views."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn import Parameter

if TYPE_CHECKING:
    from ps_service.parameters.state import ParameterState

_data: Any = torch.Tensor.data
_detach: Any = torch.Tensor.detach

_MAKING: Final = Parameter.__new__.__code__
"""The code object of `Parameter.__new__`, which calls `detach()` on tensors that are not plain parameters."""


class StandIn(Parameter):
    """A leaf on a parameter's storage that detects writes to it.

    Torch's version counter misses writes through `.data`, which has a counter of its own. So that tensor is kept.
    `data_was_read` tells whether code has asked for the `.data` of any leaf of this process.
    """

    data_was_read = False

    @property
    def data(self) -> torch.Tensor:
        """The data without autograd; the same tensor every time."""
        found: torch.Tensor | None = self.__dict__.get("_data")
        if found is None:
            StandIn.data_was_read = True
            found = self.__dict__["_data"] = _data.__get__(self)
        return found

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        self.__dict__.pop("_data", None)
        _data.__set__(self, value)

    def detach(self) -> torch.Tensor:
        """A tensor on the same storage, detached from autograd. `nn.Parameter` needs one of the same class."""
        found: torch.Tensor = _detach(self)
        if sys._getframe(1).f_code is _MAKING:
            found.__class__ = type(self)
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Makes a parameter with its own storage, like the copy of any parameter."""
        if id(self) not in memo:
            memo[id(self)] = Parameter(_data.__get__(self).clone(), self.requires_grad)
        return memo[id(self)]


def stand_in(parameter: torch.Tensor, state: ParameterState) -> torch.Tensor:
    """A fresh leaf for a parameter, which has neither hooks nor attributes."""
    # `.data`, not `.detach()`: a detached tensor shares the version counter, and torch would then refuse the
    # backward of a pass whose parameters another trainer has stepped, although the values it needs still exist.
    leaf = state.visible_of(parameter).data.requires_grad_(parameter.requires_grad)
    leaf.__class__ = StandIn
    return leaf


def is_stand_in(leaf: torch.Tensor) -> bool:
    """Whether a leaf replaces a parameter. Torch marks those that code has made of one with `nn.Parameter`."""
    return isinstance(leaf, StandIn) and "_is_param" not in leaf.__dict__


def is_written(leaf: torch.Tensor) -> bool:
    """Whether code has written to a leaf in place."""
    if leaf._version:
        return True
    given = leaf.__dict__.get("_data")
    return given is not None and bool(given._version)
