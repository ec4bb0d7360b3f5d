"""Adapts a distributed optimizer to `torch.amp.GradScaler`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ps_wire.errors import InvalidArgumentError
from ps_wire.runtime.locks import ReportingLock
from ps_wire.runtime.threads import BLOCKING
from trainer_client.optimizers.results import Unscaled, all_here, unscale_leaves
from trainer_client.session.stepped import Stepped

if TYPE_CHECKING:
    from ps_wire.refs import ContextId
    from trainer_client.contexts.context import Context
    from trainer_client.optimizers.parts import RemoteOptimizer

    Here = Callable[[Context, float], Unscaled]
    """Multiplies the gradients of a context in this process."""


class Work(NamedTuple):
    """The operations of a scaler on one pass: it unscales the gradients on all owners and here, and applies them."""

    context: ContextId
    scale: float
    unscale: Callable[[float], Unscaled]
    step: Callable[[], Stepped]


class Scaled:
    """The optimizer that a GradScaler gets in place of a distributed optimizer, and always the same one for it, because
    a scaler identifies an optimizer by its `id()`. The owners unscale, when the scaler reads `param_groups`. It gets a
    single parameter, whose gradient is finite if all gradients are, and decides itself whether to step."""

    def __init__(self) -> None:
        self._lock = ReportingLock()
        self._found = torch.zeros((), requires_grad=True, device="cpu")
        # Set only while a scaler works: it refers to the optimizer, which would be a reference cycle.
        self._work: Work | None = None
        # The pass whose gradients were the last to be unscaled.
        self.unscaled: ContextId | None = None

    def unscale(self, work: Work, scaler: torch.amp.GradScaler) -> None:
        """Lets a scaler unscale the gradients of a pass; its `RuntimeError` if it has done so since its last update."""
        with self._working(work):
            scaler.unscale_(self)  # type: ignore[arg-type]

    def step_unless_infinite(self, work: Work, scaler: torch.amp.GradScaler) -> Stepped | None:
        """Lets a scaler step, after it has unscaled the gradients unless that was done before; None if it skips it.
        Raises the `RuntimeError` of the scaler, or one if it has unscaled another pass since its last update."""
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
        found = work.unscale(float(torch.tensor(work.scale, dtype=torch.float64, device="cpu").reciprocal().float()))
        self.unscaled = work.context
        self._found.grad = None
        if found.present:
            self._found.grad = torch.tensor(torch.inf if found.non_finite else 0.0, device="cpu")
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
        if self.unscaled != work.context:
            raise RuntimeError(
                "the scaler has unscaled the gradients of another pass since its last update(): step that one, and "
                "call update() before the next"
            )


class PushScaling:
    """What scalers do with the gradients that an optimizer has on owners, and replicas have in this process."""

    scaled: Scaled
    remote_parts: Collection[RemoteOptimizer]
    """Its parts on owners."""

    _whole: ContextId | None = None
    """The pass whose gradients were unscaled last on owners and in replicas."""

    def follow_rows_here(self) -> None:
        """Takes up which owners have the rows of its tables, in a thread that is not that of the event loop."""

    def confirm_here(self, context: Context) -> None:
        """Raises `ContextLostError` if an owner has lost the pass, and parts have left that owner since. Blocks."""

    def unscale_parts(self, here: Iterable[Here], context: Context, factor: float) -> Unscaled:
        """As `unscale_all`, of the parts where the rows of tables are now: not all of them could refuse at once."""
        self.follow_rows_here()
        self.confirm_here(context)
        return unscale_all(self.remote_parts, here, context, factor)

    async def unscale_pushed(
        self, context: Context, scaler: torch.amp.GradScaler, leaves: Sequence[torch.Tensor]
    ) -> None:
        """Divides gradients of a pass by the scale of its loss, on owners and here. Raises `InvalidArgumentError` if
        one is float16, or those on owners were unscaled without those here, and the scaler's `RuntimeError`."""
        await BLOCKING.run(self.scaled.unscale, self._pushed(context, scaler, leaves), scaler)

    async def are_finite(self, context: Context, scaler: torch.amp.GradScaler, leaves: Sequence[torch.Tensor]) -> bool:
        """Whether they may be applied. They are unscaled first, unless `unscale_pushed` has done that; raises as it."""
        work = self._pushed(context, scaler, leaves)
        return await BLOCKING.run(self.scaled.step_unless_infinite, work, scaler) is not None

    def _pushed(self, context: Context, scaler: torch.amp.GradScaler, leaves: Sequence[torch.Tensor]) -> Work:
        if self.scaled.unscaled == context.id and self._whole != context.id:
            raise InvalidArgumentError(
                "opt.unscale() has unscaled the gradients on owners, and not those of the replica, which the optimizer "
                "does not know: call replica.unscale_(scaler, context=ctx, opt=opt) instead, which does both"
            )

        def unscale(factor: float) -> Unscaled:
            found = self.unscale_parts([partial(unscale_leaves, leaves)], context, factor)
            self._whole = context.id
            return found

        # The step follows when the scaler has allowed it.
        return Work(context.id, scaler.get_scale(), unscale, lambda: Stepped({}))


def unscale_all(
    remotes: Iterable[RemoteOptimizer],
    here: Iterable[Here],
    context: Context,
    factor: float,
) -> Unscaled:
    """Multiplies the gradients of parts on owners, and those `here`, in a thread that is not that of the event loop."""
    found = list(all_here(dict(enumerate(part.unscale(context, factor) for part in remotes))).values())
    found += [unscale(context, factor) for unscale in here]
    return Unscaled(any(each.present for each in found), any(each.non_finite for each in found))
