"""Records: the calls of a pass, and everything their backward needs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

import torch

from ps_service.state.entry import Entry
from ps_service.state.pace import Pace
from ps_wire.errors import InvalidArgumentError
from ps_wire.graphs import leaves_of
from ps_wire.refs import CallKey, Ref


class Leaf(NamedTuple):
    """What stood for a parameter in one recorded call.

    Attributes:
        ref: The parameter's handle, if it is one of a hosted module.
        parameter: The parameter.
        tensor: What stood for it.
        steps: How many steps it had had by then.
    """

    ref: Ref | None
    parameter: torch.Tensor
    tensor: torch.Tensor
    steps: int = 0


class Gradient(NamedTuple):
    """A parameter's gradient in one context.

    Attributes:
        ref: The handle under which the pass first met the parameter; None if it was met inside an object that is no
            module.
        parameter: The parameter; any leaf of the graph, in that case.
        tensor: The gradient.
    """

    ref: Ref | None
    parameter: torch.Tensor
    tensor: torch.Tensor


class Passage(Protocol):
    """What hosted code does on other owners in one pass.

    Attributes:
        root: What autograd is asked for to make it go back through calls whose inputs lead nowhere here.
    """

    root: torch.Tensor

    def calling(self) -> AbstractContextManager[None]:
        """While the block runs, the calls of this thread belong to the pass."""

    def propagating(self, retain_graph: bool) -> AbstractContextManager[None]:
        """While the block runs, this thread propagates through such calls; at its end they have all answered."""

    def others(self) -> list[str]:
        """Names of the owners that were called."""

    def end(self) -> None:
        """The pass is over: the other owners are told, without waiting for them."""


class KeptInput(NamedTuple):
    """An input of a recorded call that an earlier call of the pass had left here.

    Attributes:
        call: The earlier call.
        position: Place of the tensor among that call's outputs.
    """

    call: CallKey
    position: int


class Propagated(NamedTuple):
    """What the backward of a call found.

    Attributes:
        of_inputs: The gradients of the caller's inputs that want one.
        of_parameters: Those of parameters.
        of_kept: Those of inputs that earlier calls had left here.
    """

    of_inputs: list[torch.Tensor | None]
    of_parameters: list[Gradient]
    of_kept: list[tuple[KeptInput, torch.Tensor]]


class Record:
    """One recorded call: everything its backward needs.

    Args:
        outputs: The tensors of the result, in order; those that do not require grad stand here as well.
        entry: Where its inputs entered, when any of them wants a gradient.
        wanted: How many of the caller's inputs want one.
        leaves: The parameters it may have used.
        pace: How long the backward of such calls takes, if it may run on the event loop.
        kept_inputs: The inputs that entered after those of the caller.
        tokens: Places of those outputs which only stand for what another owner keeps.
        passage: What it did on other owners.
        is_module: Whether only modules took part, whose leaves are all known.
    """

    def __init__(
        self,
        outputs: Sequence[torch.Tensor],
        entry: Entry | None,
        wanted: int,
        leaves: Sequence[Leaf],
        pace: Pace | None = None,
        kept_inputs: Sequence[KeptInput] = (),
        tokens: Sequence[int] = (),
        passage: Passage | None = None,
        is_module: bool = True,
    ) -> None:
        self._pace = pace
        self._lock = threading.Lock()
        self._outputs = outputs
        self._entry = entry
        self._wanted = wanted
        self._leaves = [leaf for leaf in leaves if leaf.tensor.requires_grad]
        self._kept_inputs = kept_inputs
        self._tokens = tokens
        self._passage = passage
        self._is_module = is_module
        self._gathered: dict[int, torch.Tensor] = {}

    def gather(self, position: int, gradient: torch.Tensor) -> None:
        """Adds to the gradient of an output that was kept here; the next backward propagates it."""
        with self._lock:
            held = self._gathered.get(position)
            self._gathered[position] = gradient if held is None else added(held, gradient)

    def backward(self, positions: Sequence[int], gradients: Sequence[torch.Tensor], retain_graph: bool) -> Propagated:
        """Propagates gradients of outputs: those given, and those gathered.

        Args:
            positions: Which outputs.
            gradients: Their gradients, of the outputs' shapes and dtypes.
            retain_graph: Whether the same outputs may be propagated again.

        Raises:
            InvalidArgumentError: A position or gradient does not fit.
            RuntimeError: Torch's own, for instance when the graph was freed by an earlier pass.
        """
        for position, gradient in zip(positions, gradients, strict=True):
            self._check(position, gradient)
        propagating: AbstractContextManager[None] = nullcontext()
        if self._passage is not None:
            propagating = self._passage.propagating(retain_graph)
        # Calls do not share a graph, so those of one pass run their backward together; the same call never does.
        with self._lock, self._pace.measured() if self._pace is not None else nullcontext():
            roots, seeds = self._seeded(positions, gradients)
            if not roots:
                return Propagated([None] * self._wanted, [], [])
            leaves, others = self._leaves, self._ends()
            if not self._is_module:
                leaves = [*leaves, *self._met(roots, {id(each) for each in others})]
            targets = [*(leaf.tensor for leaf in leaves), *others]
            with propagating:
                found = torch.autograd.grad(roots, targets, seeds, retain_graph=retain_graph, allow_unused=True)
            entered = list(self._entry.take_gradients()) if self._entry is not None else []
        of_parameters = [
            Gradient(leaf.ref, leaf.parameter, gradient)
            for leaf, gradient in zip(leaves, found, strict=False)
            if gradient is not None
        ]
        of_kept = [
            (kept, gradient)
            for kept, gradient in zip(self._kept_inputs, entered[self._wanted :], strict=False)
            if gradient is not None
        ]
        return Propagated(entered[: self._wanted] or [None] * self._wanted, of_parameters, of_kept)

    @property
    def leaves(self) -> Sequence[Leaf]:
        """The parameters of hosted modules that it may have used."""
        return self._leaves

    @property
    def is_quick(self) -> bool:
        """Whether its backward may run on the event loop."""
        return self._pace is not None and self._pace.is_quick and not self._lock.locked()

    def _ends(self) -> list[torch.Tensor]:
        """What autograd is asked for besides the parameters, to make it go all the way."""
        ends = [] if self._entry is None else [self._entry.token]
        return ends if self._passage is None else [*ends, self._passage.root]

    def _met(self, roots: Sequence[torch.Tensor], known: set[int]) -> list[Leaf]:
        """Leaves of the graph that no hosted module brought: of objects that keep parameters of their own."""
        known = known | {id(leaf.tensor) for leaf in self._leaves}
        return [Leaf(None, leaf, leaf) for leaf in leaves_of(roots) if id(leaf) not in known]

    def _seeded(
        self, positions: Sequence[int], gradients: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The outputs to begin at, and their gradients."""
        found = list(zip(positions, gradients, strict=True))
        found += self._gathered.items()
        self._gathered = {}
        found += [(token, torch.empty(0)) for token in self._tokens]
        return [self._outputs[position] for position, _ in found], [gradient for _, gradient in found]

    def _check(self, position: int, gradient: torch.Tensor) -> None:
        if position >= len(self._outputs) or not self._outputs[position].requires_grad:
            raise InvalidArgumentError(f"output {position} of the call has no gradient to propagate")
        output = self._outputs[position]
        if gradient.shape != output.shape or gradient.dtype != output.dtype:
            raise InvalidArgumentError(
                f"output {position} is {output.dtype} of shape {tuple(output.shape)}, "
                f"but its gradient is {gradient.dtype} of shape {tuple(gradient.shape)}"
            )


def added(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The sum of two gradients, of which either may be sparse."""
    return b + a if a.is_sparse and not b.is_sparse else a + b
