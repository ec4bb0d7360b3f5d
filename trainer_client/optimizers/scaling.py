"""Scaling: what a `torch.amp.GradScaler` sees of a distributed optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ps_wire.runtime.locks import ReportingLock

if TYPE_CHECKING:
    from ps_wire.refs import ContextId


class Unscaled(NamedTuple):
    """What was found when gradients were unscaled.

    Attributes:
        present: Whether there were any.
        non_finite: Whether one of them holds NaN or infinity.
    """

    present: bool
    non_finite: bool


class Work(NamedTuple):
    """What a scaler is to do for a pass.

    Attributes:
        context: Its name.
        scale: By what its loss was multiplied.
        unscale: Multiplies the gradients on all owners and here.
        step: Applies them.
    """

    context: ContextId
    scale: float
    unscale: Callable[[float], Unscaled]
    step: Callable[[], dict[str, int]]


class Scaled:
    """Stands for a distributed optimizer before a GradScaler, whose public methods do the rest.

    A scaler unscales the gradients of an optimizer's parameters and remembers whether one was not finite. Here the
    owners do that, at the moment when the scaler asks for the parameters; it gets a single one, whose gradient says
    what they found. Everything else, such as whether to step and how the scale changes, is the scaler's own.

    A scaler knows an optimizer by its identity, so there is one of these for each, for as long as that lives.
    """

    def __init__(self) -> None:
        self._lock = ReportingLock()
        self._found = torch.zeros((), requires_grad=True)
        # Kept only while a scaler works: it leads to the optimizer, which must not keep itself.
        self._work: Work | None = None
        self._unscaled: ContextId | None = None

    def unscale(self, work: Work, scaler: torch.amp.GradScaler) -> None:
        """Has a scaler unscale the gradients of a pass.

        Raises:
            RuntimeError: The scaler's own: it has done so since its last update.
        """
        with self._working(work):
            scaler.unscale_(self)  # type: ignore[arg-type]

    def step_unless_infinite(self, work: Work, scaler: torch.amp.GradScaler) -> dict[str, int] | None:
        """Has a scaler step, after it has unscaled the gradients unless that was done.

        Returns:
            What the step gives; None if it was left out.

        Raises:
            RuntimeError: The scaler's own, or it has unscaled another pass since its last update.
        """
        with self._working(work):
            versions: Any = scaler.step(self)  # type: ignore[arg-type]
            self._check(work)
            return None if versions is None else dict(versions)

    # What the scaler sees

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """One group of one parameter; the gradients are unscaled now."""
        work = self._work
        assert work is not None
        # In the precision in which torch computes it.
        found = work.unscale(float(torch.tensor(work.scale, dtype=torch.float64).reciprocal().float()))
        self._unscaled = work.context
        self._found.grad = None
        if found.present:
            self._found.grad = torch.tensor(torch.inf if found.non_finite else 0.0)
        return [{"params": [self._found]}]

    def step(self) -> dict[str, int]:
        """Applies the gradients."""
        work = self._work
        assert work is not None
        self._check(work)
        return work.step()

    @contextmanager
    def _working(self, work: Work) -> Iterator[None]:
        with self._lock:
            self._work = work
            try:
                yield
            finally:
                self._work = None

    def _check(self, work: Work) -> None:
        if self._unscaled != work.context:
            raise RuntimeError(
                "the scaler has unscaled the gradients of another pass since its last update(): step that one, and "
                "call update() before the next"
            )
