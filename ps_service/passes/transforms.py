"""Lets `torch.func.grad` and the other transforms run in hosted code.

Torch refuses them while hooks of saved tensors are set, and a call that borrows modules sets such hooks to learn which
parameters its backward will need. So what torch calls in order to forbid hooks is replaced: it lifts those of the
running call for the length of the transform, and all parameters of the call stay pinned until its graph is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol, runtime_checkable

import torch

from ps_service.hosting.references import binder

_torchs: Final[Any] = torch._C._autograd
_forbid: Final = torch.autograd.graph.disable_saved_tensors_hooks


@runtime_checkable
class Hooked(Protocol):
    """A running call that may have set hooks of saved tensors."""

    def lift(self, pack: Any) -> bool:
        """Removes its hooks for some time.

        Args:
            pack: The hook that was set last.

        Returns:
            Whether the hook is its own.
        """


@contextmanager
def forbidding(error_message: str) -> Iterator[None]:
    """Like `torch.autograd.graph.disable_saved_tensors_hooks`, but removes the hooks of the running call.

    Raises:
        RuntimeError: Other hooks are set.
    """
    call, hooks = binder.get(), _torchs._top_saved_tensors_default_hooks(True)
    if hooks is None or not isinstance(call, Hooked) or not call.lift(hooks[0]):
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


def install() -> None:
    """Replaces torch's own function by `forbidding`."""
    torch.autograd.graph.disable_saved_tensors_hooks = forbidding
