"""The step of a torch optimizer: without torch's wrapper for hooks and profilers, and the first one of a process."""

from __future__ import annotations

import threading
from typing import Any, Final

import torch
from torch import optim
from torch._C._autograd import _profiler_enabled
from torch.optim import optimizer as _torchs

_PRE_HOOKS: Final = _torchs._global_optimizer_pre_hooks
_POST_HOOKS: Final = _torchs._global_optimizer_post_hooks


def is_plain(optimizer: optim.Optimizer) -> bool:
    """Whether nothing else runs with a step: no hooks, no scheduler that counts the steps, and no profiler."""
    return (
        getattr(type(optimizer).step, "hooked", False)
        and "step" not in vars(optimizer)
        and not (optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)
        and not (_PRE_HOOKS or _POST_HOOKS)
        and not _profiler_enabled()
    )


def step(optimizer: optim.Optimizer) -> None:
    """Does what `optimizer.step()` does. Torch wraps the method of each class in a function that calls hooks and tells
    a profiler of the step, which for a few small parameters takes longer than the step itself. So the wrapped function
    is called where the step is plain."""
    function: Any = type(optimizer).step
    if is_plain(optimizer):
        function.__wrapped__(optimizer)
    else:
        optimizer.step()


def warm() -> None:
    """Makes an optimizer, and steps it, in any thread. The first one imports torch's compiler: 800 modules, 1.2 s of
    processor time. Optimizers that are made meanwhile wait for it."""
    parameter = torch.zeros(1)
    parameter.grad = torch.zeros(1)
    torch.optim.SGD([parameter], lr=0.1).step()


def warm_soon() -> None:
    """Does it in a thread of its own, so that an owner serves at once; the process does not wait for its end."""
    threading.Thread(target=warm, name="ps-warm", daemon=True).start()
