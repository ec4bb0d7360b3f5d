"""Switches a module to training or evaluation mode while one call has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType


class Mode:
    """Has a module in one mode inside a block. Afterwards each part has the mode that it had before.

    Args:
        module: The module.
        parts: The module and its submodules.
        training: Whether it is in training mode.
    """

    def __init__(self, module: nn.Module, parts: Sequence[nn.Module], training: bool) -> None:
        self._module = module
        self._parts = parts
        self._training = training
        self._before: list[bool] = []

    def __enter__(self) -> None:
        now = [each.training for each in self._parts]
        if any(each is not self._training for each in now) or any(map(_has_own_train, self._parts)):
            self._before = now
            self._module.train(self._training)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        before, self._before = self._before, []
        if before:
            # Code of the module's own `train()` runs, too.
            self._module.train(before[0])
            for part, training in zip(self._parts, before, strict=True):
                if part.training is not training:
                    part.training = training


def _has_own_train(part: nn.Module) -> bool:
    return type(part).train is not nn.Module.train
