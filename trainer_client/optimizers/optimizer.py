"""Optimizers over several owners: one part on each owner, shared by all trainers, and one for local parameters."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, overload
from weakref import WeakSet

import torch

from ps_wire.refs import ContextId
from ps_wire.reported import Reductions, Report, Reported, Values, reported
from ps_wire.runtime.failures import Origin, told
from ps_wire.runtime.noop import noop
from ps_wire.runtime.threads import BLOCKING
from trainer_client.contexts.moved_rows import following_here
from trainer_client.endings import wait_here
from trainer_client.handles import hints
from trainer_client.optimizers.followed_steps import FollowedStep
from trainer_client.optimizers.policy_changes import PolicyChanges
from trainer_client.optimizers.replies import Answered, answered, joined, stepped, stepped_beside
from trainer_client.optimizers.results import all_here, all_of
from trainer_client.optimizers.scaling import Scaled, Work
from trainer_client.optimizers.states import OptimizerParts
from trainer_client.pending import Joined, Pending
from trainer_client.session.step_mistakes import check_scaler, check_unscale, warn_of_another, without_context

if TYPE_CHECKING:
    from trainer_client.contexts.context import Context
    from trainer_client.optimizers.layout import Layout
    from trainer_client.optimizers.left_owners import LeftOwners
    from trainer_client.optimizers.parts import LocalOptimizer, RemoteOptimizer, Sent, Then
    from trainer_client.optimizers.rounds import Rounds
    from trainer_client.session.in_flight import InFlightRequest
    from trainer_client.session.stepped import Stepped

NO_VALUES: Final[Mapping[str, Reported]] = {}


class DistributedOptimizer(PolicyChanges, OptimizerParts):
    """One optimizer over parameters on any number of owners and in this process.

    Its part on each owner is one optimizer, which all trainers share; the state is where the parameters are. Made by
    `Client.optimizer`.

    Attributes:
        remotes: Its parts on owners, by the owner's name.
        local: Its part in this process, if it has local parameters.
        refuses: Whether it refuses gradients with NaN or infinity.
        scaled: What a GradScaler gets in its place.
    """

    def __init__(
        self,
        remotes: dict[str, RemoteOptimizer],
        local: LocalOptimizer | None,
        layout: Layout,
        refuses: bool = False,
        rounds: Rounds | None = None,
        left: LeftOwners | None = None,
    ) -> None:
        super().__init__(remotes, local, layout, left)
        self._rounds = rounds
        self.refuses = refuses
        # The part that steps by itself, because there is no other.
        self._only = next(iter(remotes.values())) if len(remotes) == 1 and local is None else None
        # A single part checks gradients by itself. Of several, all have to check before one of them steps.
        self._refuses_together = refuses and len(remotes) + (local is not None) > 1
        self.checks_ahead = self._refuses_together and local is None and rounds is None and not self._prepares
        self.is_joinable = len(remotes) == 1 and not self._refuses_together
        self.has_local_part = local is not None
        self.scaled = Scaled()
        # Those that step it together with others, and have to know its parts.
        self.used_by: WeakSet[Any] = WeakSet()
        self.tell_moves()

    def take_parts(self, made: DistributedOptimizer) -> None:
        """Has the parts of another optimizer, over the same parameters, which have other owners now."""
        self.left.change(self.parts, made.parts)  # before it has the others: steps in other threads read both
        kept = self.policy, self.scaled, self.used_by, self.everywhere
        parts = made.remotes, made.local, made._layout, made.refuses, made._rounds, self.left
        DistributedOptimizer.__init__(self, *parts)
        self.policy, self.scaled, self.used_by, self.everywhere = kept
        for each in self.used_by:
            each.look_at_parts()

    @overload
    def step(
        self, context: Context, scaler: None = None, *, values: Values = None, reduce: Reductions = "mean"
    ) -> Pending[Stepped]: ...

    @overload
    def step(
        self, context: Context, scaler: torch.amp.GradScaler, *, values: Values = None, reduce: Reductions = "mean"
    ) -> Pending[Stepped | None]: ...

    def step(
        self,
        context: Context | None = None,
        scaler: torch.amp.GradScaler | None = None,
        *,
        values: Values = None,
        reduce: Reductions = "mean",
    ) -> Pending[Any]:
        """Applies the gradients of a context: on each owner to all parameters or none, then to the local parameters.

        It waits for backwards, clipping and unscaling of the context, and fails if one fails, or has failed unnoticed.
        If only a backward was begun, and all of both is for one owner, the step is sent right behind the backward.

        Args:
            context: The pass.
            scaler: The scaler of the loss. Gradients are unscaled first, unless `unscale` has done that. If one of them
                is not finite, on any owner or here, the step is skipped everywhere. Call its `update()` afterwards, as
                in torch.
            values: Plain values to report with the gradients, by name: a loss, an accuracy, a number of samples. They
                count once, if and when the gradients count; of several owners, the first by name counts them. At most
                64 names, and 64 KiB.
            reduce: How the owner reduces the values of several gradients, for all names or by name: `mean` or `sum` of
                numbers or of dense tensors of one shape and dtype, where every gradient has the same weight; or `keep`,
                which keeps the latest value of each trainer, of any kind. Names that a dictionary leaves out are
                averaged. Sums of tensors of integers are int64, those of 16-bit floating-point numbers float32.

        Returns:
            The version of the optimizer on each owner after the step, as a dictionary that also says what its policy
            made of the gradients, and has the reduced values of the round (`Stepped.reported`). None if the scaler has
            skipped the step, and with it the values.

        Raises:
            InvalidArgumentError: A value cannot be reduced so, or does not fit those that came under its name since the
                last reset; nothing was changed.
            TooLargeError: There are too many values, or too large ones; nothing was changed.
            ContextEndedError: The context has ended.
            ContextLostError: An owner has lost its part of the pass.
            NonFiniteGradientError: The optimizer refuses NaN and infinity, and a gradient on an owner or here holds
                one; nothing was changed anywhere.
            PsError: An owner failed. The other owners have applied their parts; the local part is not applied.
            RuntimeError: The scaler raised it.
        """
        if context is None or not isinstance(getattr(context, "id", None), ContextId):
            raise without_context()
        if scaler is not None:
            check_scaler(scaler)
        if self in context.steps:
            warn_of_another(context, self)
        sent = self.report(values, reduce)
        if scaler is not None and not scaler.is_enabled():
            scaler = None
        later = partial(self._step_later, context, scaler, sent)
        asks = context in self.left
        only = None if asks or scaler is not None else self._only
        if not (asks or context.unfinished):
            stepping = self._step(context, scaler, sent)
        elif only is not None and (sent_before := context.sent_to(only.session)):
            stepping = self._step(context, None, sent, sent_before)
        else:
            stepping = context.behind_backwards(later())
        if self.follow is not None:
            stepping = FollowedStep(self._loop, stepping, self.follow, later)
        stepping.origin = Origin(self, "step", context.failures)
        context.steps[self] = stepping
        return context.waits_for(stepping)

    async def _step_later(self, context: Context, *how: Any) -> Any:
        await self.left.confirm(context)
        return await self._step(context, *how)

    def _step(
        self,
        context: Context,
        scaler: torch.amp.GradScaler | None,
        values: Mapping[str, Reported],
        follows: Sent = (),
        compares: bool = True,
    ) -> Pending[Any]:
        self.check_pass(context)
        if self._only is not None and scaler is None:
            part = self._only
            takes_part = part.session in context.sessions
            read = partial(stepped, part.owner) if takes_part else partial(stepped_beside, self, part.owner)
            return part.step(context, read, follows=follows, values=values, compares=compares)
        if scaler is not None:
            work = self._work(context, scaler, values)
            return Pending.run(self._loop, BLOCKING.run(self.scaled.step_unless_infinite, work, scaler))
        if self._checks_first(values):
            return Pending.run(self._loop, BLOCKING.run(self._apply, context, values))
        return self.step_accepted(context, values)

    def report(self, values: Values, reduce: Reductions) -> Report:
        if not values:
            return Report()
        self.first_part()
        return reported(values, reduce)

    # As one of several that step together

    def step_accepted(self, context: Context, values: Mapping[str, Reported] = NO_VALUES) -> Pending[Stepped]:
        """Like `step`, once all owners have accepted the gradients and values, and all backwards have ended."""
        if self._rounds is not None:
            return Pending.run(self._loop, self._rounds.take_part(context, values))
        if self._only is not None:
            return self._step(context, None, values, compares=False)
        asked = self._ask(context, values)
        steps = Joined(self._loop, asked.values(), lambda found: dict(zip(asked, found, strict=True)))

        async def finish() -> Stepped:
            return await self.finish_step(context, await steps, values)

        return Pending.run(self._loop, finish())

    def _ask(
        self, context: Context, values: Mapping[str, Reported], compares: bool = False
    ) -> dict[str, InFlightRequest[Answered]]:
        self.check_pass(context)
        if not self._refuses_together:
            self.check_local_part(context)
        return self._steps_on(self.remotes, context, answered, values, apart=len(self.remotes) > 1, compares=compares)

    async def finish_step(
        self, context: Context, parts: dict[str, Answered], values: Mapping[str, Reported] = NO_VALUES
    ) -> Stepped:
        """What follows when owners have answered the steps of their parts. Raises as `step`. If owners say that another
        trainer has given the optimizer its first policy, the step is made in a round. But if an owner had no rounds
        yet, and has applied its part, the others do, too."""
        refused = {name: each.reply for name, each in parts.items() if each.reply.owners}
        if refused and len(refused) == len(parts):
            self._no_local_part()
            rounds = await self._begin_rounds(next(iter(refused.values())).policy)
            return await rounds.take_part(context, values)
        if refused:
            finish = self._steps_on(refused, context, answered, values, finish=True)
            parts = {**parts, **await all_of(finish)}
        await self.step_local_part(context)
        if refused and self.local is None:
            await self._begin_rounds(next(iter(refused.values())).policy)
        return joined(parts)

    # In a thread that may wait

    def apply(
        self,
        context: Context | None = None,
        scaler: torch.amp.GradScaler | None = None,
        *,
        values: Values = None,
        reduce: Reductions = "mean",
    ) -> Stepped | None:
        """Like `step`, in this thread, which must not be that of the client's event loop; raises as that."""
        if context is None or not isinstance(getattr(context, "id", None), ContextId):
            raise without_context(waits=True)
        if scaler is not None:
            check_scaler(scaler)
        if self in context.steps:
            warn_of_another(context, self)
        sent = self.report(values, reduce)
        if unfinished := context.unfinished:
            with told():
                wait_here(self._loop, unfinished)
        if scaler is not None and scaler.is_enabled():
            self.check_pass(context)
            self.left.confirm_here(context)
            made = self.scaled.step_unless_infinite(self._work(context, scaler, sent), scaler)
        else:
            made = following_here(self.follow_rows_here, lambda: self._apply(context, sent))
        if made is not None:
            context.steps[self] = None
        return made

    def _apply(self, context: Context, values: Mapping[str, Reported]) -> Stepped:
        self.left.confirm_here(context)
        if checks := self._checks_first(values):
            self.check_pass(context)
            self.check_local_part(context)
            all_here(self._steps_on(self.remotes, context, noop, values, check_only=True, prepare=self._prepares))
        return self.apply_accepted(context, values, compares=not checks)

    def apply_accepted(
        self, context: Context, values: Mapping[str, Reported] = NO_VALUES, compares: bool = False
    ) -> Stepped:
        """Like `step_accepted`, in this thread."""
        if self._rounds is not None:
            self.check_pass(context)
            return Pending.run(self._loop, self._rounds.take_part(context, values)).wait()
        parts = all_here(self._ask(context, values, compares))
        if any(each.reply.owners for each in parts.values()):
            return Pending.run(self._loop, self.finish_step(context, parts, values)).wait()
        self.apply_local_part(context)
        return joined(parts)

    # Scalers

    def unscale(self, context: Context, scaler: torch.amp.GradScaler) -> Pending[None]:
        """Divides the gradients of a context by the scaler's scale, on all owners and here, before they are clipped.

        Raises:
            ContextEndedError: The context has ended.
            InvalidArgumentError: A gradient is float16.
            RuntimeError: The scaler has unscaled since its last update.
            PsError, RuntimeError: A backward, clipping or unscaling that was begun before has failed.
        """
        check_unscale(context, scaler)
        self.check_pass(context)
        if not scaler.is_enabled():
            return Pending.run(self._loop, asyncio.sleep(0))
        return context.change_gradients(BLOCKING.run(self.scaled.unscale, self._work(context, scaler, {}), scaler))

    def _work(self, context: Context, scaler: torch.amp.GradScaler, values: Mapping[str, Reported]) -> Work:
        here = [] if self.local is None else [self.local.unscale]
        unscale = partial(self.unscale_parts, here, context)
        apply = self._apply if self._prepares else self.apply_accepted
        return Work(context.id, scaler.get_scale(), unscale, partial(apply, context, values))

    def _checks_first(self, values: Mapping[str, Reported]) -> bool:
        """Whether all parts check what they get before one steps. Only the first gets values, and may refuse them. Any
        part of a table may refuse because its rows have moved."""
        if self._rounds is not None:
            return self.follow is not None
        several = len(self.remotes) > 1 and (bool(values) or self.follow is not None)
        return several or self._refuses_together or self._prepares

    # Gradients that replicas have added to a pass

    @property
    def of_parameters(self) -> DistributedOptimizer:
        """The optimizer of what is no table."""
        return self

    async def step_pushed(
        self, context: Context, added: Mapping[str, Sent], then: Then, values: Mapping[str, Reported]
    ) -> Stepped:
        """Steps with the gradients of a context, once owners have accepted them. Raises the errors of `step`. `added`
        has the requests that add gradients, by owner. `then` is called with an owner, and with requests after which it
        has stepped; maybe again, with later ones."""
        await self.left.confirm(context)
        if self._rounds is not None:
            return await self._rounds.take_part(context, values, added, then)
        if self._only is None or not added.keys() <= {self._only.owner}:
            await all_of(dict(enumerate(chain(*added.values()))))
            # They may have followed a module that has moved, whose owner of before may have lost the pass.
            await self.left.confirm(context)
        # An owner that has lost the session would take this for a pass without gradients there.
        self.check_pass(context)
        if (part := self._only) is not None:
            only = part.step(context, partial(stepped, part.owner), follows=added.get(part.owner, ()), values=values)
            then(part.owner, [only])
            return await only
        if self._checks_first(values):
            await all_of(self._steps_on(self.remotes, context, noop, values, check_only=True, prepare=self._prepares))
            self.check_pass(context)
        steps = self._steps_on(self.remotes, context, answered, values, apart=True)
        for name, step in steps.items():
            then(name, [step])
        parts = await all_of(steps)
        if not any(each.reply.owners for each in parts.values()):
            return joined(parts)
        made = await self.finish_step(context, parts, values)
        for name in self.remotes:
            then(name, ())
        return made


# It is no `torch.optim.Optimizer`, and does not pretend to be one. Torch's schedulers refuse it with this name alone.
DistributedOptimizer.__name__ = hints.OPTIMIZER
