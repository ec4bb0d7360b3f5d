"""Notices that a call of hosted code sets hooks, or attributes of modules.

The code of hooks runs in the backward, and may look parameters up on its module. The recomputation of
`torch.utils.checkpoint` is such code, too: it sets hooks of saved tensors. An attribute that a call sets and sets back
does not show afterwards, but other calls would see it meanwhile.
"""

from __future__ import annotations

import functools
from typing import Any, Final, Protocol, runtime_checkable

import torch
from torch.autograd.graph import saved_tensors_hooks

from ps_service.hosting.references import binder

_register: Final[Any] = torch.Tensor.register_hook
_enter: Final[Any] = saved_tensors_hooks.__enter__
_set: Final[Any] = torch.nn.Module.__setattr__


@runtime_checkable
class Noting(Protocol):
    """A running call whose code may set hooks and attributes."""

    def runs_later(self) -> None:
        """Notes a hook of a tensor."""

    def sets_hooks(self, pack: Any) -> None:
        """Notes hooks of saved tensors."""

    def sets_attribute(self) -> None:
        """Notes an attribute of a module."""


@functools.wraps(_register)
def _noted_register(tensor: torch.Tensor, hook: Any) -> Any:
    call = binder.get()
    if call is not None and isinstance(call, Noting):
        call.runs_later()
    return _register(tensor, hook)


@functools.wraps(_enter)
def _noted_enter(hooks: saved_tensors_hooks) -> None:
    call = binder.get()
    if call is not None and isinstance(call, Noting):
        call.sets_hooks(hooks.pack_hook)
    _enter(hooks)


@functools.wraps(_set)
def _noted_set(module: torch.nn.Module, name: str, value: Any) -> None:
    call = binder.get()
    if call is not None and isinstance(call, Noting):
        call.sets_attribute()
    _set(module, name, value)


def install() -> None:
    """Replaces the functions of torch that set hooks and attributes."""
    torch.Tensor.register_hook = _noted_register  # type: ignore[method-assign]
    saved_tensors_hooks.__enter__ = _noted_enter  # type: ignore[method-assign]
    torch.nn.Module.__setattr__ = _noted_set  # type: ignore[method-assign, assignment]
