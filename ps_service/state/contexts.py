"""Contexts: what an owner keeps of each pass, from its first forward until its trainer ends it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Final, NamedTuple

import torch
from torch.nn import Parameter

from ps_service.state.entry import Entry
from ps_service.state.pace import Pace
from ps_wire.errors import ContextEndedError, ContextLostError, InvalidArgumentError
from ps_wire.numbers import SeenNumbers
from ps_wire.refs import ContextId, Ref

_REMEMBERED: Final = 4096
"""Contexts of one trainer that were ended here while older ones were not; that one still comes then is not expected."""


class Leaf(NamedTuple):
    """What stood for a parameter in one recorded call."""

    ref: Ref
    parameter: Parameter
    tensor: torch.Tensor


class Gradient(NamedTuple):
    """A parameter's gradient in one context; `ref` is the handle under which the pass first met the parameter."""

    ref: Ref
    parameter: Parameter
    tensor: torch.Tensor


class Record:
    """One recorded call: everything its backward needs.

    Args:
        outputs: The tensors of the result, in order; those that do not require grad stand here as well.
        entry: Where its inputs entered, when any of them wants a gradient.
        wanted: How many inputs want one.
        leaves: The parameters it may have used.
        pace: How long the backward of such calls takes, if it may run on the event loop.
    """

    def __init__(
        self,
        outputs: Sequence[torch.Tensor],
        entry: Entry | None,
        wanted: int,
        leaves: Sequence[Leaf],
        pace: Pace | None = None,
    ) -> None:
        self._pace = pace
        self._lock = threading.Lock()
        self._outputs = outputs
        self._entry = entry
        self._wanted = wanted
        self._leaves = [leaf for leaf in leaves if leaf.tensor.requires_grad]

    def backward(
        self, positions: Sequence[int], gradients: Sequence[torch.Tensor], retain_graph: bool
    ) -> tuple[list[torch.Tensor | None], list[Gradient]]:
        """Propagates gradients of outputs.

        Args:
            positions: Which outputs.
            gradients: Their gradients, of the outputs' shapes and dtypes.
            retain_graph: Whether the same outputs may be propagated again.

        Returns:
            The gradients of the inputs that want one, and those of the parameters.

        Raises:
            InvalidArgumentError: A position or gradient does not fit.
            RuntimeError: Torch's own, for instance when the graph was freed by an earlier pass.
        """
        roots = [self._root(position, gradient) for position, gradient in zip(positions, gradients, strict=True)]
        targets = [leaf.tensor for leaf in self._leaves]
        if self._entry is not None:
            targets.append(self._entry.token)
        # Calls do not share a graph, so those of one pass run their backward together; the same call never does.
        with self._lock, self._pace.measured() if self._pace is not None else nullcontext():
            found = torch.autograd.grad(roots, targets, list(gradients), retain_graph=retain_graph, allow_unused=True)
            of_inputs = list(self._entry.take_gradients()) if self._entry is not None else []
        of_parameters = [
            Gradient(leaf.ref, leaf.parameter, gradient)
            for leaf, gradient in zip(self._leaves, found, strict=False)
            if gradient is not None
        ]
        return of_inputs or [None] * self._wanted, of_parameters

    @property
    def is_quick(self) -> bool:
        """Whether its backward may run on the event loop."""
        return self._pace is not None and self._pace.is_quick and not self._lock.locked()

    def _root(self, position: int, gradient: torch.Tensor) -> torch.Tensor:
        if position >= len(self._outputs) or not self._outputs[position].requires_grad:
            raise InvalidArgumentError(f"output {position} of the call has no gradient to propagate")
        output = self._outputs[position]
        if gradient.shape != output.shape or gradient.dtype != output.dtype:
            raise InvalidArgumentError(
                f"output {position} is {output.dtype} of shape {tuple(output.shape)}, "
                f"but its gradient is {gradient.dtype} of shape {tuple(gradient.shape)}"
            )
        return output


class Context:
    """One pass on this owner.

    Attributes:
        id: Its name.
    """

    def __init__(self, id: ContextId) -> None:
        self.id = id
        self._lock = threading.RLock()
        self._records: dict[int, Record] = {}
        self._gradients: dict[int, Gradient] = {}
        self._own: set[int] = set()
        self._ended = False

    def add(self, call: int, record: Record) -> None:
        """Keeps a recorded call.

        Raises:
            ContextEndedError: The context ended while the call ran.
        """
        with self._lock:
            if self._ended:
                raise _ended(self.id)
            self._records[call] = record

    def record(self, call: int) -> Record:
        """A call that was recorded here.

        Raises:
            ContextLostError: There is none of that number.
        """
        with self._lock:
            try:
                return self._records[call]
            except KeyError:
                raise _lost(self.id) from None

    def accumulate(self, gradients: Sequence[Gradient]) -> None:
        """Adds to the parameters' gradients of this pass."""
        with self._lock:
            for gradient in gradients:
                key = id(gradient.parameter)
                held = self._gradients.get(key)
                if held is None:
                    self._gradients[key] = gradient
                elif key in self._own and not held.tensor.is_sparse:
                    held.tensor.add_(gradient.tensor)
                else:
                    # The first gradient may be shared with other nodes of the graph: not to be written to.
                    self._gradients[key] = held._replace(tensor=_sum(held.tensor, gradient.tensor))
                    self._own.add(key)

    def gradients(self) -> list[Gradient]:
        with self._lock:
            return list(self._gradients.values())

    def gradient(self, parameter: Parameter) -> torch.Tensor | None:
        """The gradient of a parameter, if this pass has brought it one."""
        with self._lock:
            held = self._gradients.get(id(parameter))
            return None if held is None else held.tensor

    def gradients_of(self, parameters: Sequence[Parameter]) -> list[torch.Tensor | None]:
        """The gradients of some parameters, all from one moment.

        Raises:
            ContextEndedError: The context has ended.
        """
        with self._lock:
            held = self._gradients  # one look: `end` does not wait, and puts an empty dict in its place
            if self._ended:
                raise _ended(self.id)
            found = [held.get(id(parameter)) for parameter in parameters]
        return [None if each is None else each.tensor for each in found]

    def scale(self, parameters: Sequence[Parameter], factor: float) -> None:
        """Multiplies the gradients of some parameters."""
        with self._lock:
            for parameter in parameters:
                held = self._gradients.get(id(parameter))
                if held is not None:
                    self._gradients[id(parameter)] = held._replace(tensor=held.tensor * factor)
                    self._own.add(id(parameter))

    def end(self) -> None:
        """Lets go of everything the pass held. Does not wait: a backward that still runs frees its part when done."""
        self._ended = True
        self._records = {}
        self._gradients = {}


class Contexts:
    """The open contexts of an owner, and which ones have ended. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[ContextId, Context] = {}
        self._ended: dict[bytes, SeenNumbers] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, id: ContextId) -> Context:
        """The context of that name; opened if this owner has not seen it yet.

        Raises:
            ContextEndedError: It has ended.
        """
        with self._lock:
            context = self._open.get(id)
            if context is None:
                self._check(id)
                context = self._open[id] = Context(id)
            return context

    def get(self, id: ContextId) -> Context | None:
        """The context of that name, or None if it has not been used on this owner.

        Raises:
            ContextEndedError: It has ended.
        """
        with self._lock:
            context = self._open.get(id)
            if context is None:
                self._check(id)
            return context

    def find(self, id: ContextId) -> Context:
        """The context of that name.

        Raises:
            ContextEndedError: It has ended.
            ContextLostError: This owner does not have it.
        """
        context = self.get(id)
        if context is None:
            raise _lost(id)
        return context

    def end(self, id: ContextId) -> None:
        """Ends a context, also one that was never used here: requests of it may still be on their way."""
        with self._lock:
            context = self._open.pop(id, None)
            self._ended.setdefault(id.trainer, SeenNumbers(_REMEMBERED)).add(id.number)
        if context is not None:
            context.end()

    def forget(self, trainer: bytes) -> None:
        """Frees everything of a trainer that is gone."""
        with self._lock:
            gone = [self._open.pop(id) for id in list(self._open) if id.trainer == trainer]
            self._ended.pop(trainer, None)
        for context in gone:
            context.end()

    def _check(self, id: ContextId) -> None:
        if id.number in self._ended.get(id.trainer, ()):
            raise _ended(id)


def _sum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return b + a if a.is_sparse and not b.is_sparse else a + b


def _ended(id: ContextId) -> ContextEndedError:
    return ContextEndedError(f"context {id} has ended: its calls and gradients are gone. Open a new one for a new pass")


def _lost(id: ContextId) -> ContextLostError:
    return ContextLostError(
        f"this owner does not have the forward pass of context {id} (it may have restarted): run forward again"
    )
