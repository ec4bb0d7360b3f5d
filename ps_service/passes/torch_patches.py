"""Replaces functions of torch, so that running calls notice what their code does.

The code of hooks runs in the backward, and may look parameters up on its module. The recomputation of
`torch.utils.checkpoint` is such code, too: it sets hooks of saved tensors. What a call changes of a module and changes
back does not show afterwards, but other calls would see it meanwhile: attributes, hooks, frozen parameters, and the
parameters that `torch.func.functional_call` replaces.

Torch refuses `torch.func.grad` and the other transforms while hooks of saved tensors are set, and a call on a module
itself sets such hooks to learn which parameters its backward will need. So what torch calls in order to forbid hooks
lifts those of the running call for the length of the transform, and all parameters of the call stay pinned until its
graph is gone.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.utils import stateless

from ps_service.hosting.references import binder

_register: Final[Any] = torch.Tensor.register_hook
_enter: Final[Any] = saved_tensors_hooks.__enter__
_set: Final[Any] = torch.nn.Module.__setattr__
_forbid: Final = torch.autograd.graph.disable_saved_tensors_hooks
_torchs: Final[Any] = torch._C._autograd

_HOOKS: Final = (
    *("register_forward_hook", "register_forward_pre_hook", "register_backward_hook"),
    *("register_full_backward_hook", "register_full_backward_pre_hook"),
)


@functools.wraps(_register)
def _noted_register(tensor: torch.Tensor, hook: Any) -> Any:
    call = binder.get()
    if call is not None:
        call.runs_later()
    return _register(tensor, hook)


@functools.wraps(_enter)
def _noted_enter(hooks: saved_tensors_hooks) -> None:
    call = binder.get()
    if call is not None:
        call.sets_hooks(hooks.pack_hook)
    _enter(hooks)


@functools.wraps(_set)
def _noted_set(module: torch.nn.Module, name: str, value: Any) -> None:
    call = binder.get()
    if call is not None:
        call.sets_attribute()
    _set(module, name, value)


def _noted_change(function: Any) -> Any:
    """A function that changes a module, or a parameter of it."""

    @functools.wraps(function)
    def noted(*args: Any, **kwargs: Any) -> Any:
        call = binder.get()
        if call is not None:
            call.sets_attribute()
        return function(*args, **kwargs)

    return noted


@contextmanager
def forbidding(error_message: str) -> Iterator[None]:
    """Like `torch.autograd.graph.disable_saved_tensors_hooks`, but removes the hooks of the running call.

    Raises:
        RuntimeError: Other hooks are set.
    """
    call, hooks = binder.get(), _torchs._top_saved_tensors_default_hooks(True)
    if hooks is None or call is None or not call.lift(hooks[0]):
        with _forbid(error_message):
            yield
        return
    before = _torchs._saved_tensors_hooks_get_disabled_error_message()
    _torchs._saved_tensors_hooks_disable(error_message, False)
    try:
        yield
    finally:
        if before is None:
            _torchs._saved_tensors_hooks_enable()
        else:
            _torchs._saved_tensors_hooks_disable(before, False)


def are_hooks_allowed() -> bool:
    """Whether hooks of saved tensors can be set in this thread: they cannot inside the transforms of torch.func."""
    return _torchs._saved_tensors_hooks_is_enabled()  # type: ignore[no-any-return]


def install() -> None:
    """Replaces the functions."""
    torch.Tensor.register_hook = _noted_register  # type: ignore[method-assign]
    saved_tensors_hooks.__enter__ = _noted_enter  # type: ignore[method-assign]
    torch.nn.Module.__setattr__ = _noted_set  # type: ignore[method-assign, assignment]
    torch.autograd.graph.disable_saved_tensors_hooks = forbidding
    torch.Tensor.requires_grad_ = _noted_change(torch.Tensor.requires_grad_)  # type: ignore[method-assign]
    stateless._functional_call = _noted_change(stateless._functional_call)
    for name in _HOOKS:
        setattr(torch.nn.Module, name, _noted_change(getattr(torch.nn.Module, name)))
