"""Replaces functions of torch, so that running calls notice what their code does.

The code of hooks runs in the backward, and may look parameters up on its module; so does the recomputation of
`torch.utils.checkpoint`, which sets hooks of saved tensors. What a call changes of a module and changes back does not
show afterwards, but other calls would see it meanwhile.

Torch refuses `torch.func.grad` and the other transforms while hooks of saved tensors are set, as a call on a module
itself sets them. So what torch calls in order to forbid hooks lifts those of the running call for the length of the
transform, and all parameters of the call stay pinned until its graph is gone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import methodcaller
from typing import Any, Final

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.utils import stateless

from ps_service.hosting.references import Borrower, binder

_enter: Final[Any] = saved_tensors_hooks.__enter__
_forbid: Final = torch.autograd.graph.disable_saved_tensors_hooks
_torchs: Final[Any] = torch._C._autograd

_CHANGING: Final = (
    *("__setattr__", "register_forward_hook", "register_forward_pre_hook", "register_backward_hook"),
    *("register_full_backward_hook", "register_full_backward_pre_hook"),
)
"""Methods that change a module."""


@functools.wraps(_enter)
def _noted_enter(hooks: saved_tensors_hooks) -> None:
    call = binder.get()
    if call is not None:
        call.sets_hooks(hooks.pack_hook)
    _enter(hooks)


def _noted(function: Any, note: Callable[[Borrower], None]) -> Any:
    """The function, which tells the running call of each call to it."""

    @functools.wraps(function)
    def noted(*args: Any, **kwargs: Any) -> Any:
        call = binder.get()
        if call is not None:
            note(call)
        return function(*args, **kwargs)

    return noted


@contextmanager
def forbidding(error_message: str) -> Iterator[None]:
    """Like `torch.autograd.graph.disable_saved_tensors_hooks`, but removes the hooks of the running call. Other hooks
    are a `RuntimeError`."""
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


def note_recomputation() -> None:
    """Tells the running call that a part of it will run again in the backward, with the same random numbers."""
    call = binder.get()
    if call is not None:
        call.recomputes()


def are_hooks_allowed() -> bool:
    """Whether hooks of saved tensors can be set in this thread: they cannot inside the transforms of torch.func."""
    return _torchs._saved_tensors_hooks_is_enabled()  # type: ignore[no-any-return]


def install() -> None:
    """Replaces the functions."""
    runs_later, sets_attribute = methodcaller("runs_later"), methodcaller("sets_attribute")
    torch.Tensor.register_hook = _noted(torch.Tensor.register_hook, runs_later)  # type: ignore[method-assign]
    saved_tensors_hooks.__enter__ = _noted_enter  # type: ignore[method-assign]
    torch.autograd.graph.disable_saved_tensors_hooks = forbidding
    torch.Tensor.requires_grad_ = _noted(torch.Tensor.requires_grad_, sets_attribute)  # type: ignore[method-assign]
    stateless._functional_call = _noted(stateless._functional_call, sets_attribute)
    for name in _CHANGING:
        setattr(torch.nn.Module, name, _noted(getattr(torch.nn.Module, name), sets_attribute))
