"""The gradients of passes on a member: one store for the calls of others and for what the member computes itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ps_service.hosting.references import binder
from ps_service.passes.gradients import Gradient
from trainer_client.graph.leaves import LocalGradients

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_wire.refs import ContextId


class OwnGradients(LocalGradients):
    """The gradients of one pass of a member for tensors of its process. The part of the pass on its owner adds up those
    of other members' calls, which may use the same tensors, so that its own are kept there, too."""

    def __init__(self, engine: Engine, context: ContextId) -> None:
        super().__init__()
        self._engine = engine
        self._context = context

    def add(self, found: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Adds gradients to those that are there. Raises the errors of a pass that has ended on this owner."""
        brought = [Gradient(None, leaf, grad.clone() if grad._is_view() else grad) for leaf, grad in found]
        if brought:
            self._engine.contexts.open(self._context, self._context.trainer).accumulate(brought)

    def of(self, leaf: torch.Tensor) -> torch.Tensor | None:
        context = self._engine.contexts.get(self._context)
        return None if context is None else context.gradients_of([leaf])[0]

    def items(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The tensors of this process that have a gradient, without parameters that have handles; and the gradients."""
        context = self._engine.contexts.get(self._context)
        found = [] if context is None else context.gradients()
        return [(each.parameter, each.tensor) for each in found if each.ref is None]

    def scale(self, leaves: Iterable[torch.Tensor], factor: float) -> None:
        context = self._engine.contexts.get(self._context)
        if context is not None:
            context.scale(list(leaves), factor)

    def clear(self) -> None:
        if self._context in self._engine.contexts:
            self._engine.contexts.end(self._context)

    @contextmanager
    def reserved(self, leaves: Sequence[torch.Tensor]) -> Iterator[None]:
        """Also excludes optimizers of other members, which use the `.grad` of tensors that they train."""
        locks = self._engine.parameter_locks
        with locks.stepping(locks.known(leaves)), super().reserved(leaves):
            yield

    def take_now(self, leaves: Sequence[torch.Tensor]) -> bool:
        return not self._engine.parameter_locks.known(leaves) and super().take_now(leaves)


class GradientsByTensor(dict[torch.Tensor, torch.Tensor]):
    """The gradients of a pass by tensor. Inside a call, leaves of a hosted module find those of its parameters."""

    def __init__(self, found: Iterable[Gradient]) -> None:
        call = binder.get()
        leaves = {} if call is None else call.leaves_of_parameters()
        self._found = {id(each.parameter): each for each in found}
        super().__init__((leaves.get(key, each.parameter), each.tensor) for key, each in self._found.items())

    def __missing__(self, key: torch.Tensor) -> torch.Tensor:
        call = binder.get()
        behind = call.parameter_behind(key) if call is not None and isinstance(key, torch.Tensor) else None
        parameter = key if behind is None else behind[0].parameter(behind[1])
        found = self._found.get(id(parameter))
        if found is None:
            raise KeyError(key)
        return found.tensor

    def __contains__(self, key: object) -> bool:
        return self.get(key) is not None

    def get(self, key: Any, default: Any = None) -> Any:
        """The gradient of a tensor; the default if it has none."""
        try:
            return self[key]
        except KeyError:
            return default
