"""The gradients that a pass has brought to the parameters of this owner, added in the order of its calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from ps_service.memory.held import Share, size
from ps_service.tables.row_gradients import UnsummedGradient
from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from ps_wire.refs import Ref


class Gradient(NamedTuple):
    """A parameter's gradient in one context. The handle is that when the pass first used the parameter; None if that is
    any leaf of the graph, which belongs to no module."""

    ref: Ref | None
    parameter: torch.Tensor
    tensor: torch.Tensor


class Turn(NamedTuple):
    """Where the backward of one call stands in the order in which gradients are added. `backward` is the number of the
    trainer's backward, from 1. `place` has the numbers of the calls that the call is nested in, and its own. `after` is
    the number of the call whose gradients are added just before, 0 for the first; None if it is not known."""

    backward: int
    place: tuple[int, ...]
    after: int | None = None


class Unscaled(NamedTuple):
    """Whether there were gradients to unscale, and whether one of them holds NaN or infinity."""

    present: bool
    non_finite: bool


_Sums = tuple[dict[int, Gradient], set[int]]
"""Sums of gradients by identity of the parameter, and the identities of those that are tensors of their own, which may
be written to."""


class Gradients:
    """The gradients of one pass. Not safe from several threads.

    Sums of floating point numbers depend on their order, and answers of calls come in any order. Gradients are added as
    local torch adds them: within one backward the latest call first, then one backward after the other. A gradient that
    comes too early is kept until its turn, or until gradients are read. The share counts their bytes.
    """

    def __init__(self, share: Share | None = None) -> None:
        self._share = share
        self.nbytes = 0
        # What the backwards before the running one have brought, and what the running one has brought in order.
        self._total: _Sums = ({}, set())
        self._running: _Sums = ({}, set())
        self._backward = 0
        # The call of the running backward whose gradients were added last; 0 before the first.
        self._added = 0
        self._early: dict[tuple[int, ...], list[Gradient]] = {}
        self._next: dict[int, tuple[int, ...]] = {}

    def add(self, gradients: Sequence[Gradient], turn: Turn | None = None) -> None:
        """Adds the gradients that the backward of one call has found, at most one per parameter; without a turn, at
        once."""
        for _, _, tensor in gradients:
            self.nbytes += tensor.nbytes if tensor.layout is torch.strided else _size(tensor)
        if turn is None:
            self._end_backward()
            self._add(self._total, gradients)
        else:
            if turn.backward != self._backward:
                if self._backward:
                    self._end_backward()
                self._backward = turn.backward
            self._early.setdefault(turn.place, []).extend(gradients)
            if turn.after is not None:
                self._next[turn.after] = turn.place
            while (place := self._next.pop(self._added, None)) is not None:
                self._add(self._running, self._early.pop(place, ()))
                self._added = place[-1]
        if self._share is not None:
            self._share.resize(self.nbytes)

    def has(self, parameter: torch.Tensor) -> bool:
        """Whether there is a gradient of a parameter, also while a backward goes on."""
        if id(parameter) in self._total[0] or id(parameter) in self._running[0]:
            return True
        return any(each.parameter is parameter for early in self._early.values() for each in early)

    def all(self) -> list[Gradient]:
        """All gradients, in the order in which the pass met the parameters."""
        self._end_backward()
        return list(self._total[0].values())

    def of_each(self, parameters: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """The gradients of some parameters; None for those that the pass has brought none."""
        self._end_backward()
        held = self._total[0]
        found: list[torch.Tensor | None] = []
        for parameter in parameters:
            gradient = held.get(id(parameter))
            found.append(None if gradient is None else gradient.tensor)
        return found

    def scale(self, parameters: Sequence[torch.Tensor], factor: float) -> None:
        """Multiplies the gradients of some parameters."""
        self._end_backward()
        held = self._total[0]
        for parameter in parameters:
            gradient = held.get(id(parameter))
            if gradient is not None:
                held[id(parameter)] = gradient._replace(tensor=gradient.tensor * factor)
                self._total[1].add(id(parameter))

    def unscale(self, parameters: Sequence[torch.Tensor], factor: float) -> Unscaled:
        """Multiplies the gradients of some parameters by the inverse of a loss's scale. Raises `InvalidArgumentError`
        if one is float16, which a GradScaler refuses, too; nothing was changed."""
        found = [gradient for gradient in self.of_each(parameters) if gradient is not None]
        if any(gradient.dtype == torch.float16 for gradient in found):
            raise InvalidArgumentError("a GradScaler does not unscale float16 gradients: keep parameters in float32")
        non_finite = not all(map(is_finite, found))
        self.scale(parameters, factor)
        return Unscaled(bool(found), non_finite)

    def _add(self, sums: _Sums, gradients: Iterable[Gradient]) -> None:
        """Adds gradients, whose bytes were counted when they came, to sums."""
        held, own = sums
        for gradient in gradients:
            key = id(gradient.parameter)
            before = held.get(key)
            if before is None:
                held[key] = gradient
                continue
            if before.ref is None and gradient.ref is not None:
                before = held[key] = before._replace(ref=gradient.ref)
            if key in own and not before.tensor.is_sparse:
                before.tensor.add_(gradient.tensor)
            else:
                # The first gradient may be shared with other nodes of the graph, so it is not written to.
                total = added(before.tensor, gradient.tensor)
                held[key] = before._replace(tensor=total)
                own.add(key)
                self.nbytes += _size(total) - _size(before.tensor)
            self.nbytes -= _size(gradient.tensor)

    def _end_backward(self) -> None:
        """Adds what the running backward has brought to the total, because it is over or gradients are read."""
        if not self._early and not self._running[0]:
            return
        for place in sorted(self._early, reverse=True):
            self._add(self._running, self._early[place])
        if self._total[0]:
            self._add(self._total, self._running[0].values())
        else:
            self._total = self._running[0], set()
        self._running, self._early, self._next, self._added = ({}, set()), {}, {}, 0
        if self._share is not None and self._share.nbytes != self.nbytes:
            self._share.resize(self.nbytes)


def added(held: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
    """The sum of two gradients, as torch's engine makes it; either may be sparse."""
    return more + held if held.is_sparse and not more.is_sparse else held + more


def is_finite(gradient: torch.Tensor) -> bool:
    """Whether a gradient holds neither NaN nor infinity."""
    if isinstance(gradient, UnsummedGradient) and gradient.is_surely_finite:
        return True
    values = gradient._values() if gradient.is_sparse else gradient
    # One pass, without a tensor of booleans. The sum of finite numbers may not be finite, which is rare.
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())


def _size(gradient: torch.Tensor) -> int:
    """Bytes that a gradient holds, always the same number."""
    if gradient.layout is torch.strided:
        return gradient.nbytes
    return gradient.most_bytes if isinstance(gradient, UnsummedGradient) else size(gradient)
