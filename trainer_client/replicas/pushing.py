"""What one replica and several have in common: pushes, maybe with a scaler, and maybe in a pass of the program."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ps_wire.errors import InvalidArgumentError
from ps_wire.refs import ContextId
from ps_wire.reported import Reductions, Reported, reported
from ps_wire.shown import shown
from trainer_client.pending import Pending, all_ended
from trainer_client.replicas.protocols import check_backward, check_gradients, of_parameters
from trainer_client.session.step_mistakes import check_scaler, warn_of_another

if TYPE_CHECKING:
    from trainer_client.replicas.overlap import Overlap
    from trainer_client.replicas.pass_pushes import PassPushes
    from trainer_client.replicas.protocols import OpenPass, OwnersOptimizer, Push, Pushable, Source
    from trainer_client.session.runs import Run
    from trainer_client.session.stepped import Stepped


class Pushing(nn.Module, ABC):
    """A local module whose gradients are pushed. `current` returns the pass of this task or thread."""

    def __init__(
        self, module: nn.Module, pushes: PassPushes, overlap: Overlap, current: Callable[[], OpenPass | None]
    ) -> None:
        super().__init__()
        self.module = module
        self.current = current
        self._exchanges = pushes.exchanges
        self._overlap = overlap
        self._pushes = pushes
        # What a GradScaler gets as the optimizer: it unscales `.grad` in place, and steps if all are finite.
        self._scaled: Any = SimpleNamespace(param_groups=[{"params": self.pulled_parameters}], step=lambda: True)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the local module."""
        return self.module(*args, **kwargs)

    def push(
        self,
        opt: Pushable,
        *,
        context: OpenPass | None = None,
        pull: bool = True,
        scaler: torch.amp.GradScaler | None = None,
        zero_grad: bool = True,
        values: Mapping[str, Any] | None = None,
        reduce: Reductions = "mean",
    ) -> Pending[Stepped | None]:
        """Sends `.grad` of all parameters to an optimizer on the owner. It steps, or follows its policy.

        The staleness is the number of steps since the parameters were pulled. Parameters without a gradient are left
        out, as in a local optimizer. Gradients of dtypes other than that of the owner's parameter are cast to it.

        With error feedback, a push that is dropped, is cancelled or fails leaves the residuals as if it had not been
        made. If it counted all the same, which a cancelled push, `DeadlineExceededError` and `SessionLostError` do not
        tell, what its codec left out is lost, and what was left out before may be sent again: less than a gradient.

        With `overlap=n`, cancelling the result cancels this push, and not the one whose outcome it is: the next push
        or `finish` has that.

        `Replicas` step on each owner with all of its gradients or none. With a policy, all owners take the gradients in
        the same round. Without one, nothing steps before all owners have accepted them.

        Args:
            opt: An optimizer all of whose parameters are on the owner of the module; for `Replicas`, on their owners.
                With a context, any that steps the module, such as one with tables.
            context: The pass that has the gradients, because its forward has looked up in tables or called owners.
                They join those that the pass has on owners, and the optimizer steps with all of them, as in its `step`.
                Its backward has ended. With an overlap the pass belongs to the push from then on.
            pull: Whether the answer brings the parameters after the step, as `pull` does.
            scaler: The scaler of the loss. It unscales the gradients; with a context all that the optimizer steps with.
                If one is not finite, nothing steps. Call its `update()` afterwards, as in torch.
            zero_grad: Whether `.grad` is None afterwards, also if the push fails. Otherwise the gradients are copied,
                and can be pushed again.
            values: Plain values to report with the gradients, by name, as for `DistributedOptimizer.step`. They are not
                sent if the scaler skips the step.
            reduce: How the owner reduces them, as there.

        Returns:
            What became of the gradients; None if the scaler has skipped the step. With `overlap=n`: what became of
            those of the n-th push before, whose parameters are taken over now; None if there is none.

        Raises:
            InvalidArgumentError: The optimizer has parameters elsewhere, or does not step all of the modules. A
                gradient or a value does not fit. Nothing was changed on the owner.
            TooLargeError: There are too many values, or too large ones. Nothing was changed.
            NonFiniteGradientError: A gradient holds NaN or infinity, and the optimizer refuses these, or a codec has no
                form for them. Nothing was changed on the owner.
            DeadlineExceededError: The other trainers of the round did not come in time.
            PsError: One of several owners failed, as in the optimizer's `step`.
        """
        check_scaler(scaler, "push()")
        if context is not None and not isinstance(getattr(context, "id", None), ContextId):
            raise InvalidArgumentError(f"context= is the pass that has the gradients, not {shown(context)}")
        target = self._checked(opt, context)
        if context is not None:
            if opt in context.steps:
                warn_of_another(context, opt)
            report = reported(values, reduce) if values else {}
            send = partial(self._send, opt, context, zero_grad, report, pull)
            if scaler is not None and scaler.is_enabled():
                self._pushes.check(opt)
                context.check()
                pushed = self._push_scaled(opt, context, scaler, send, zero_grad)
            else:
                pushed = send()
                if self._overlap.most:
                    return pushed  # which ends the pass
            context.steps[opt] = pushed
            return context.waits_for(pushed)
        if scaler is not None and scaler.is_enabled() and not scaler.step(self._scaled):
            if zero_grad:
                self._forget_skipped()
            return self._overlap.nothing()
        report = reported(values, reduce) if values else {}
        made = self._written_push(target, zero_grad, report, pull)
        if zero_grad:
            self.forget_gradients()
        return self._overlap.push(made)

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
        if context is None:
            scaler.unscale_(self._scaled)
        elif opt is None:
            raise InvalidArgumentError("unscale_() of a pass takes the optimizer, too: unscale_(…, context=…, opt=…)")
        else:
            self._check_pass(opt, context)
            self._pushes.check(opt)
            context.check()
            if scaler.is_enabled():
                work = opt.unscale_pushed(context, scaler, self.pulled_parameters)
                return context.change_gradients(work)
        return Pending.run(self._overlap.loop, asyncio.sleep(0))

    # A push that joins a pass

    def _check_pass(self, opt: Pushable, context: OpenPass | None) -> OwnersOptimizer:
        """Checks that a push may join a pass of the program, or needs none; returns the parameters' optimizer."""
        own = of_parameters(opt)
        if own is None:
            raise InvalidArgumentError(f"{opt!r} steps tables only, and no replica")
        if context is not None:
            check_backward(context)
        elif own is not opt:
            raise InvalidArgumentError(
                "an optimizer with tables steps with the gradients of a pass: call ctx.backward(loss), and then "
                "push(opt, context=ctx)"
            )
        else:
            check_gradients(self.pulled_parameters, self.current())
        return own

    def _send(
        self, opt: Pushable, context: OpenPass, zero_grad: bool, values: Mapping[str, Reported], pull: bool
    ) -> Pending[Stepped | None]:
        hands_over = self._overlap.most > 0
        made = self._pushes.written(opt, context, True, zero_grad, values, pull, hands_over=hands_over)
        if zero_grad:
            self.forget_gradients(context)
        return self._overlap.push(made)

    def _push_scaled(
        self,
        opt: Pushable,
        context: OpenPass,
        scaler: torch.amp.GradScaler,
        send: Callable[[], Pending[Stepped | None]],
        zero_grad: bool,
    ) -> Pending[Stepped | None]:
        """Pushes once the scaler has found the gradients finite, on all owners and here."""
        loop = self._overlap.loop
        sent: list[Pending[Stepped | None]] = []

        async def push() -> Pending[Stepped | None]:
            if not await opt.are_finite(context, scaler, self.pulled_parameters):
                if zero_grad:
                    self.forget_gradients(context)
                return self._overlap.nothing()
            sent.append(send())
            await all_ended(loop, sent)
            return sent[0]

        work = Pending.run(loop, push())

        def cancel() -> None:
            for each in sent:
                each.cancel()
            work.cancel()

        done: Pending[Stepped | None] = Pending(loop, cancel)
        # Parameters are taken over in the thread that waits for the push.
        work.on_done(lambda: done.resolve(lambda: work.result().result()))
        return done

    def forget_gradients(self, context: OpenPass | None = None) -> None:
        """Sets `.grad` of the parameters to None, or drops their gradients of a pass."""
        if context is not None:
            context.drop(self.pulled_parameters)
        else:
            for parameter in self.pulled_parameters:
                parameter.grad = None

    def _forget_skipped(self) -> None:
        """Forgets `.grad` after a push that the scaler has skipped."""
        self.forget_gradients()

    @property
    def pulled_parameters(self) -> Sequence[nn.Parameter]:
        """The parameters that are pulled and pushed, in the order of the owners' modules."""
        return [each for exchange in self._exchanges for each in exchange.tensors.parameters]

    @property
    def sources(self) -> Sequence[Source]:
        """The handles of the modules on their owners."""
        return [each.source for each in self._exchanges]

    @abstractmethod
    def _checked(self, opt: Pushable, context: OpenPass | None) -> Any:
        """Checks a push before anything is changed; returns what `_written_push` pushes to."""

    @abstractmethod
    def _written_push(self, target: Any, zero_grad: bool, values: Mapping[str, Reported], pull: bool) -> Push:
        """Writes `.grad` into a push that joins no pass of the program."""

    # For `LocalSteps`

    @property
    def readings(self) -> Sequence[int]:
        """How often values of the owner were taken over, of each replica."""
        return [each.tensors.readings for each in self._exchanges]

    @abstractmethod
    def check_local_steps(self, opt: OwnersOptimizer | None = None) -> None:
        """Raises `InvalidArgumentError` if it takes no local steps, parameters were written to since the last pull, or
        the optimizer on the owners steps no replica."""
        for each in self._exchanges:
            each.tensors.check_unwritten()

    def begin_local_steps(self, opt: OwnersOptimizer) -> None:
        """Keeps the pulled parameters from now on, because local steps change those here; checks as above."""
        self.check_local_steps(opt)
        for each in self._exchanges:
            each.tensors.anchor()

    @abstractmethod
    def push_difference(
        self, opt: OwnersOptimizer, run: Run, counted: Callable[[], None], values: Mapping[str, Reported]
    ) -> Pending[Stepped | None]:
        """Sends what local steps have changed, and pulls. This is one attempt of `run`; each owner counts one.
        `counted` is called when the owners have answered, and their parameters are here."""

    def nothing(self) -> Pending[Stepped | None]:
        """A result that is there: None."""
        return self._overlap.nothing()
