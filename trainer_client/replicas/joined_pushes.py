"""Pushes of replicas that join a pass of the program, maybe with a scaler, and maybe while the next forward runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ps_wire.errors import InvalidArgumentError
from ps_wire.runtime.nothing import nothing
from trainer_client.pending import Pending
from trainer_client.replicas.checks import check_pass

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ps_wire.reported import Reported
    from trainer_client.replicas.overlap import Overlap
    from trainer_client.replicas.pass_pushes import PassPushes
    from trainer_client.replicas.protocols import OpenPass, Pushable
    from trainer_client.session.stepped import Stepped


class ScaledParameters:
    """The optimizer that a GradScaler gets. The scaler unscales `.grad` in place, and decides whether to step.

    Args:
        parameters: The parameters of the replica.

    Attributes:
        param_groups: One group of them.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": list(parameters)}]

    def step(self) -> bool:
        """Called by the scaler if all gradients are finite."""
        return True

    def unscale(self, scaler: torch.amp.GradScaler) -> None:
        """Divides the gradients by the scale of the loss.

        Raises:
            RuntimeError: The scaler has unscaled them since its last update.
        """
        scaler.unscale_(self)  # type: ignore[arg-type]

    def are_finite(self, scaler: torch.amp.GradScaler) -> bool:
        """Whether the gradients may be applied. They are unscaled first, unless `unscale` has done that."""
        return bool(scaler.step(self))  # type: ignore[arg-type]


class JoinedPushes:
    """The pushes of some replicas that join passes of the program.

    Args:
        pushes: Their pushes through passes.
        overlap: Their pushes in order.
        scaled: Their parameters, for scalers.
    """

    def __init__(self, pushes: PassPushes, overlap: Overlap, scaled: ScaledParameters) -> None:
        self._loop = pushes.loop
        self._replicas = pushes.replicas
        self._pushes = pushes
        self._overlap = overlap
        self._scaled = scaled

    def push(
        self,
        opt: Pushable,
        context: OpenPass,
        scaler: torch.amp.GradScaler | None,
        zero_grad: bool,
        values: Mapping[str, Reported],
        pull: bool,
    ) -> Pending[Stepped | None]:
        """Pushes the gradients that a pass has for the replicas; the optimizer steps with all that the pass has.

        With an overlap the pass belongs to the push from then on, and ends with it. Otherwise its block waits for the
        push.

        Args:
            opt: The optimizer.
            context: The pass. Its backward has ended.
            scaler: The scaler of the loss, or None.
            zero_grad: Whether the pass has no gradients of the replicas here afterwards.
            values: What is reported with the gradients.
            pull: Whether the parameters after the step are pulled.

        Raises:
            InvalidArgumentError, NonFiniteGradientError, ContextEndedError, ContextLostError: As `Replica.push`.
        """
        send = partial(self._send, opt, context, zero_grad, values, pull)
        if scaler is None or not scaler.is_enabled():
            pushed = send()
            return pushed if self._overlap.most else context.waits_for(pushed)
        self._pushes.check(opt)
        context.check()
        return context.waits_for(self._push_scaled(opt, context, scaler, zero_grad, send))

    def unscale_(
        self,
        scaler: torch.amp.GradScaler,
        context: OpenPass | None,
        opt: Pushable | None,
    ) -> Pending[None]:
        """Divides gradients by the scale of the loss, before they are clipped: `.grad`, or those of a pass.

        Args:
            scaler: The scaler.
            context: The pass; None for `.grad`.
            opt: The optimizer that steps with the gradients of the pass.

        Raises:
            InvalidArgumentError, RuntimeError: As in `Replica.unscale_`.
        """
        if context is None:
            self._scaled.unscale(scaler)
        else:
            if opt is None:
                raise InvalidArgumentError(
                    "unscale_() of a pass takes the optimizer, too: unscale_(…, context=…, opt=…)"
                )
            check_pass(opt, context, self._replicas)
            self._pushes.check(opt)
            context.check()
        if context is None or opt is None or not scaler.is_enabled():
            return Pending.run(self._loop, asyncio.sleep(0))
        return context.waits_for(Pending.run(self._loop, opt.unscale_pushed(context, scaler, self._leaves)))

    def _send(
        self, opt: Pushable, context: OpenPass, zero_grad: bool, values: Mapping[str, Reported], pull: bool
    ) -> Pending[Stepped | None]:
        hands_over = self._overlap.most > 0
        made = self._pushes.written(opt, context, True, zero_grad, values, pull, hands_over=hands_over)
        if zero_grad:
            self._forget(context)
        return self._overlap.push(made)

    def _push_scaled(
        self,
        opt: Pushable,
        context: OpenPass,
        scaler: torch.amp.GradScaler,
        zero_grad: bool,
        send: Callable[[], Pending[Stepped | None]],
    ) -> Pending[Stepped | None]:
        """Pushes once the scaler has found the gradients finite, on all owners and here."""
        sent: list[Pending[Stepped | None]] = []

        async def push() -> Pending[Stepped | None]:
            if not await opt.are_finite(context, scaler, self._leaves):
                if zero_grad:
                    self._forget(context)
                return self._overlap.nothing()
            sent.append(send())
            ended: Pending[None] = Pending(self._loop)
            sent[0].on_done(partial(ended.resolve, nothing))
            await ended
            return sent[0]

        work = Pending.run(self._loop, push())

        def cancel() -> None:
            for each in sent:
                each.cancel()
            work.cancel()

        done: Pending[Stepped | None] = Pending(self._loop, cancel)
        # Parameters are taken over in the thread that waits for the push.
        work.on_done(lambda: done.resolve(lambda: work.result().result()))
        return done

    @property
    def _leaves(self) -> list[torch.Tensor]:
        return [each for replica in self._replicas for each in replica.pulled_parameters]

    def _forget(self, context: OpenPass) -> None:
        for each in self._replicas:
            each.forget_gradients(context)


class Pushing:
    """What one replica and several do with their pushes, beside sending them."""

    module: nn.Module
    _overlap: Overlap

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the local module."""
        return self.module(*args, **kwargs)

    @property
    def _joined(self) -> JoinedPushes:
        """Its pushes that join passes."""
        raise NotImplementedError

    def finish(self) -> Pending[list[Stepped | None]]:
        """Waits for the pushes that are still under way with `overlap`, and takes over their parameters.

        Cancelling the result cancels none of them: call it again.

        Returns:
            What became of their gradients, in order.

        Raises:
            PsError: One of them has failed; the first error, after all have ended.
        """
        return self._overlap.finish()

    def unscale_(
        self, scaler: torch.amp.GradScaler, *, context: OpenPass | None = None, opt: Pushable | None = None
    ) -> Pending[None]:
        """Divides `.grad` of its parameters by the scale of the loss, before gradients are clipped.

        Args:
            scaler: The scaler.
            context: The pass that has the gradients, as for `push`. Await the result then.
            opt: The optimizer that will step with them, on owners too; only with a context.

        Raises:
            InvalidArgumentError: There is a context and no optimizer, or another one than for `push`.
            RuntimeError: The scaler has unscaled them since its last update.
        """
        return self._joined.unscale_(scaler, context, opt)

    def nothing(self) -> Pending[Stepped | None]:
        """A result that is there: None."""
        return self._overlap.nothing()
