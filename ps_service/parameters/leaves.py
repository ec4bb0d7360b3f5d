"""The autograd leaves that replace parameters while hosted code runs."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Parameter

_data: Any = torch.Tensor.data


class StandIn(Parameter):
    """A leaf on a parameter's storage that detects writes to it.

    Torch's version counter misses writes through `.data`, which has a counter of its own. So that tensor is kept.
    """

    @property
    def data(self) -> torch.Tensor:
        """The data without autograd; the same tensor every time."""
        found: torch.Tensor | None = self.__dict__.get("_data")
        if found is None:
            found = self.__dict__["_data"] = _data.__get__(self)
        return found

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        self.__dict__.pop("_data", None)
        _data.__set__(self, value)


def stand_in(parameter: Parameter, copied: bool = False) -> torch.Tensor:
    """A fresh leaf for a parameter, with its hooks.

    Args:
        parameter: The parameter.
        copied: Whether the leaf gets a copy of the data.
    """
    # `.data`, not `.detach()`: a detached tensor shares the version counter, and torch would then refuse the
    # backward of a pass whose parameters another trainer has stepped, although the numbers it needs are still there.
    leaf = parameter.data.clone() if copied else parameter.data
    leaf.requires_grad_(parameter.requires_grad)
    if type(leaf) is torch.Tensor:
        leaf.__class__ = StandIn
    if parameter._backward_hooks is not None:
        # The same dict, so that hooks added or removed while a pass is open take effect, as they do locally.
        leaf._backward_hooks = parameter._backward_hooks
    return leaf


def is_written(leaf: torch.Tensor) -> bool:
    """Whether code has written to a leaf in place."""
    if leaf._version:
        return True
    given = leaf.__dict__.get("_data")
    return given is not None and bool(given._version)


def let_go(leaf: torch.Tensor) -> None:
    """Drops a leaf's references to hooks and to its `.data` tensor."""
    leaf.__dict__.pop("_data", None)
