"""Stand-ins: the autograd leaves that stand for parameters while hosted code runs."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Parameter

_data: Any = torch.Tensor.data


class StandIn(Parameter):
    """A leaf on a parameter's storage that notices how it is written to.

    Torch counts writes to a tensor, but not those through its `.data`, which has a count of its own. So that is kept.
    """

    @property
    def data(self) -> torch.Tensor:
        """The numbers, outside of autograd."""
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
        copied: Whether it gets numbers of its own.
    """
    # `.data`, not `.detach()`: a detached tensor shares the version counter, and torch would then refuse the
    # backward of a pass whose parameters another trainer has stepped, although the numbers it needs are still there.
    leaf = parameter.data.clone() if copied else parameter.data
    leaf.requires_grad_(parameter.requires_grad)
    if type(leaf) is torch.Tensor:
        leaf.__class__ = StandIn
    if parameter._backward_hooks is not None:
        # The very dict, so that hooks are run that come or go while a pass is open, as they are locally.
        leaf._backward_hooks = parameter._backward_hooks
    return leaf


def is_written(leaf: torch.Tensor) -> bool:
    """Whether somebody has written to a stand-in in place."""
    if leaf._version:
        return True
    given = leaf.__dict__.get("_data")
    return given is not None and bool(given._version)


def let_go(leaf: torch.Tensor) -> None:
    """Frees what a stand-in keeps beside its own numbers."""
    leaf.__dict__.pop("_data", None)
