"""Adapts a distributed optimizer to `torch.amp.GradScaler`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ps_wire.runtime.locks import ReportingLock
from trainer_client.contexts.stepped import Stepped
from trainer_client.optimizers.results import all_here

if TYPE_CHECKING:
    from ps_wire.refs import ContextId
    from trainer_client.contexts.context import Context
    from trainer_client.optimizers.parts import LocalOptimizer, RemoteOptimizer


class Unscaled(NamedTuple):
    """The result of unscaling gradients.

    Attributes:
        present: Whether there were any gradients.
        non_finite: Whether one of them holds NaN or infinity.
    """

    present: bool
    non_finite: bool


class Work(NamedTuple):
    """The operations of a scaler on one pass.

    Attributes:
        context: Id of the pass.
        scale: The factor of its loss.
        unscale: Multiplies the gradients on all owners and here.
        step: Applies the gradients.
    """

    context: ContextId
    scale: float
    unscale: Callable[[float], Unscaled]
    step: Callable[[], Stepped]


class Scaled:
    """The optimizer that a GradScaler gets in place of a distributed optimizer.

    A scaler unscales the gradients of an optimizer's parameters and remembers whether one was not finite. Here the
    owners unscale, when the scaler reads `param_groups`. It gets a single parameter, whose gradient is finite if all
    gradients are. The scaler itself decides whether to step, and how the scale changes.

    A scaler identifies an optimizer by its `id()`, so each distributed optimizer has one `Scaled` as long as it lives.
    """

    def __init__(self) -> None:
        self._lock = ReportingLock()
        self._found = torch.zeros((), requires_grad=True)
        # Set only while a scaler works: it refers to the optimizer, which would be a reference cycle.
        self._work: Work | None = None
        self._unscaled: ContextId | None = None

    def unscale(self, work: Work, scaler: torch.amp.GradScaler) -> None:
        """Lets a scaler unscale the gradients of a pass.

        Raises:
            RuntimeError: The scaler has unscaled since its last update.
        """
        with self._working(work):
            scaler.unscale_(self)  # type: ignore[arg-type]

    def step_unless_infinite(self, work: Work, scaler: torch.amp.GradScaler) -> Stepped | None:
        """Lets a scaler step, after it has unscaled the gradients unless that was done before.

        Returns:
            The result of the step; None if it was skipped.

        Raises:
            RuntimeError: The scaler raised it, or has unscaled another pass since its last update.
        """
        with self._working(work):
            stepped: Any = scaler.step(self)  # type: ignore[arg-type]
            self._check(work)
            return stepped if isinstance(stepped, Stepped) else None

    # The interface of an optimizer that the scaler uses

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Unscales the gradients, and returns one group with one parameter."""
        work = self._work
        assert work is not None
        # In the precision that torch uses.
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


def unscale_all(
    remotes: Mapping[str, RemoteOptimizer], local: LocalOptimizer | None, context: Context, factor: float
) -> Unscaled:
    """Multiplies the gradients of all parts of an optimizer, in a thread that is not that of the event loop."""
    found = list(all_here({name: part.unscale(context, factor) for name, part in remotes.items()}).values())
    if local is not None:
        found.append(local.unscale(context, factor))
    return Unscaled(any(each.present for each in found), any(each.non_finite for each in found))
