"""Gradients: what a pass has brought to the parameters of this owner, added up in the order of its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from ps_service.memory.held import Share, size
from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from ps_wire.refs import Ref


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


class Turn(NamedTuple):
    """Where the backward of one call stands in the order in which gradients are added.

    Attributes:
        backward: Number of the trainer's backward, from one on.
        place: Number of the call in the pass; of a nested call, after those of the calls around it.
        after: Number of the call whose gradients are added just before, zero for the first; None if that is not known.
    """

    backward: int
    place: tuple[int, ...]
    after: int | None = None


class Unscaled(NamedTuple):
    """What was found when gradients were unscaled.

    Attributes:
        present: Whether there were any.
        non_finite: Whether one of them holds NaN or infinity.
    """

    present: bool
    non_finite: bool


class Gradients:
    """The gradients of one pass. Not safe from several threads.

    Sums of floating point numbers depend on their order. Answers of calls come in any order; what is held here is added
    as local torch adds it: within one backward the latest call first, and then one backward after the other. What comes
    too early is kept until its turn, or until somebody asks for gradients.

    Args:
        share: Lets their bytes count.
    """

    def __init__(self, share: Share | None = None) -> None:
        self._share = share
        self._early_bytes = 0
        self._total = _Sums()
        self._running = _Sums()
        self._backward = 0
        self._added = 0
        self._early: dict[tuple[int, ...], list[Gradient]] = {}
        self._next: dict[int, tuple[int, ...]] = {}

    def add(self, gradients: Sequence[Gradient], turn: Turn | None = None) -> None:
        """Adds what the backward of one call has found.

        Args:
            gradients: At most one per parameter.
            turn: When it is added; at once, if there is no order to keep.
        """
        self._add(gradients, turn)
        self._count()

    def _add(self, gradients: Sequence[Gradient], turn: Turn | None) -> None:
        if turn is None:
            self._close()
            for gradient in gradients:
                self._total.add(gradient)
            return
        if turn.backward != self._backward:
            self._close()
            self._backward = turn.backward
        self._early.setdefault(turn.place, []).extend(gradients)
        self._early_bytes += sum(size(gradient.tensor) for gradient in gradients)
        if turn.after is not None:
            self._next[turn.after] = turn.place
        self._add_due()

    def all(self) -> list[Gradient]:
        """Those that there are, in the order in which the pass met the parameters."""
        self._close()
        return list(self._total)

    def of(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """The gradient of a parameter, if the pass has brought it one."""
        self._close()
        return self._total.get(parameter)

    def scale(self, parameters: Sequence[torch.Tensor], factor: float) -> None:
        """Multiplies the gradients of some parameters."""
        self._close()
        for parameter in parameters:
            self._total.change(parameter, lambda gradient: gradient * factor)

    def unscale(self, parameters: Sequence[torch.Tensor], factor: float) -> Unscaled:
        """Multiplies them by the inverse of a loss's scale, and looks whether they are finite.

        Raises:
            InvalidArgumentError: One is float16, as a GradScaler refuses it too; nothing was changed.
        """
        found = [each for each in map(self.of, parameters) if each is not None]
        if any(gradient.dtype == torch.float16 for gradient in found):
            raise InvalidArgumentError("a GradScaler does not unscale float16 gradients: keep parameters in float32")
        non_finite = not all(map(is_finite, found))
        self.scale(parameters, factor)
        return Unscaled(bool(found), non_finite)

    def _add_due(self) -> None:
        """Adds what has waited for just this call."""
        while (place := self._next.pop(self._added, None)) is not None:
            for gradient in self._early.pop(place, ()):
                self._early_bytes -= size(gradient.tensor)
                self._running.add(gradient)
            self._added = place[-1]

    def _close(self) -> None:
        """The running backward is over, or is looked at before it is."""
        if not self._early and not self._running:
            return
        for place in sorted(self._early, reverse=True):
            for gradient in self._early[place]:
                self._running.add(gradient)
        for gradient in self._running:
            self._total.add(gradient)
        self._running, self._early, self._next, self._added = _Sums(), {}, {}, 0
        self._early_bytes = 0
        self._count()

    def _count(self) -> None:
        if self._share is not None:
            self._share.resize(self._total.nbytes + self._running.nbytes + self._early_bytes)


class _Sums:
    """One gradient per parameter.

    Attributes:
        nbytes: Of all of them.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._held: dict[int, Gradient] = {}
        self._own: set[int] = set()

    def add(self, gradient: Gradient) -> None:
        key = id(gradient.parameter)
        held = self._held.get(key)
        if held is None:
            self._held[key] = gradient
            self.nbytes += size(gradient.tensor)
        elif key in self._own and not held.tensor.is_sparse:
            held.tensor.add_(gradient.tensor)
        else:
            # The first gradient may be shared with other nodes of the graph: not to be written to.
            total = added(held.tensor, gradient.tensor)
            self._held[key] = held._replace(tensor=total)
            self._own.add(key)
            self.nbytes += size(total) - size(held.tensor)

    def get(self, parameter: torch.Tensor) -> torch.Tensor | None:
        held = self._held.get(id(parameter))
        return None if held is None else held.tensor

    def change(self, parameter: torch.Tensor, how: Callable[[torch.Tensor], torch.Tensor]) -> None:
        held = self._held.get(id(parameter))
        if held is not None:
            self._held[id(parameter)] = held._replace(tensor=how(held.tensor))
            self._own.add(id(parameter))

    def __bool__(self) -> bool:
        return bool(self._held)

    def __iter__(self) -> Iterator[Gradient]:
        return iter(self._held.values())


def added(held: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
    """The sum of two gradients, as torch's engine makes it; either may be sparse."""
    return more + held if held.is_sparse and not more.is_sparse else held + more


def is_finite(gradient: torch.Tensor) -> bool:
    """Whether a gradient holds neither NaN nor infinity."""
    values = gradient._values() if gradient.is_sparse else gradient
    return bool(torch.isfinite(values).all())
