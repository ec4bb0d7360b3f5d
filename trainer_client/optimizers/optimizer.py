"""Optimizers over several owners: one part on each owner, shared by all trainers, and one for local parameters."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import torch

from ps_wire.codec.values import Encoder
from ps_wire.errors import InvalidArgumentError
from ps_wire.policies import to_plain
from ps_wire.runtime.threads import BLOCKING
from ps_wire.v1.values_pb2 import Value
from trainer_client.contexts.closing import Stepping
from trainer_client.contexts.stepped import Stepped
from trainer_client.optimizers import pushed, rounds
from trainer_client.optimizers.layout import Layout
from trainer_client.optimizers.parts import LocalOptimizer, RemoteOptimizer, answered, stepped, version
from trainer_client.optimizers.results import all_here, all_of
from trainer_client.optimizers.scaling import Scaled, Unscaled, Work
from trainer_client.pending import Pending, after

if TYPE_CHECKING:
    from ps_wire.policies import Policy
    from ps_wire.v1.operations_pb2 import StepReply
    from trainer_client.contexts.context import Context
    from trainer_client.optimizers.pushed import Sent, Then
    from trainer_client.optimizers.rounds import Rounds
    from trainer_client.session.session import Session


class DistributedOptimizer(Stepping):
    """One optimizer over parameters on any number of owners and in this process.

    Its part on each owner is one optimizer, which all trainers share; the state is where the parameters are. Made by
    `Client.optimizer`.

    Attributes:
        remotes: Its parts on owners, by the owner's name.
        local: Its part in this process, if it has local parameters.
    """

    def __init__(
        self,
        remotes: dict[str, RemoteOptimizer],
        local: LocalOptimizer | None,
        layout: Layout,
        refuses: bool = False,
        rounds: Rounds | None = None,
    ) -> None:
        self.remotes = remotes
        self.local = local
        self._rounds = rounds
        self._layout = layout
        # A single part checks gradients by itself. Of several, all have to check before one of them steps.
        self._looks_first = refuses and len(remotes) + (local is not None) > 1
        self.parts = [part.described for part in remotes.values()]
        self.is_joinable = len(remotes) == 1 and not self._looks_first
        self.has_local_part = local is not None
        self._scaled = Scaled()
        self._loop = self.sessions[0].loop if remotes else asyncio.get_running_loop()

    @overload
    def step(self, context: Context, scaler: None = None) -> Pending[Stepped]: ...

    @overload
    def step(self, context: Context, scaler: torch.amp.GradScaler) -> Pending[Stepped | None]: ...

    def step(self, context: Context, scaler: torch.amp.GradScaler | None = None) -> Pending[Any]:
        """Applies the gradients of a context: on each owner to all parameters or none, then to the local parameters.

        It waits for backwards of the context that were begun before, and fails if one of them fails. If all of both is
        for one owner, the step is sent right behind the backward.

        Args:
            context: The pass.
            scaler: The scaler of the loss. Gradients are unscaled first, unless `unscale` has done that. If one of them
                is not finite, on any owner or here, the step is skipped everywhere. Call its `update()` afterwards, as
                in torch.

        Returns:
            The version of the optimizer on each owner after the step, as a dictionary that also says what its policy
            made of the gradients; None if the scaler has skipped the step.

        Raises:
            ContextEndedError: The context has ended.
            ContextLostError: An owner has lost its part of the pass.
            NonFiniteGradientError: The optimizer refuses NaN and infinity, and a gradient on an owner or here holds
                one; nothing was changed anywhere.
            PsError: An owner failed. The other owners have applied their parts; the local part is not applied.
            RuntimeError: The scaler raised it.
        """
        if context.unfinished:
            return self._step_behind(context, scaler)
        return self._step_now(context, scaler)

    def _step_now(self, context: Context, scaler: torch.amp.GradScaler | None) -> Pending[Any]:
        if scaler is not None and scaler.is_enabled():
            self._check_pass(context)
            work = self._work(context, scaler)
            return Pending.run(self._loop, BLOCKING.run(self._scaled.step_unless_infinite, work, scaler))
        if self._rounds is not None:
            self._check_pass(context)
            return self._rounds.step(context)
        if self._looks_first:
            self._check_pass(context)
            return Pending.run(self._loop, BLOCKING.run(self.apply, context))
        if self.local is None and len(self.remotes) == 1:
            (part,) = self.remotes.values()
            context.check(part.handle.session)
            return part.step(context, partial(stepped, part.owner))
        steps = Pending.all_of(self._loop, self._begin(context))
        return Pending.run(self._loop, self._step(context, steps))

    def _step_behind(self, context: Context, scaler: torch.amp.GradScaler | None) -> Pending[Any]:
        """Steps once the backwards that were begun have succeeded."""
        if self.is_joinable and not self.has_local_part and (scaler is None or not scaler.is_enabled()):
            (part,) = self.remotes.values()
            context.check(part.handle.session)
            if follows := context.sent_to(part.handle.session):
                return part.step(context, partial(stepped, part.owner), follows=follows)
        return Pending.run(self._loop, after(self._loop, list(context.unfinished), self._step_later(context, scaler)))

    async def _step_later(self, context: Context, scaler: torch.amp.GradScaler | None) -> Any:
        return await self._step_now(context, scaler)

    def apply(self, context: Context, scaler: torch.amp.GradScaler | None = None) -> Stepped | None:
        """Like `step`, in this thread, which must not be that of the client's event loop.

        Raises:
            PsError, RuntimeError: As in `step`.
        """
        if scaler is not None and scaler.is_enabled():
            self._check_pass(context)
            return self._scaled.step_unless_infinite(self._work(context, scaler), scaler)
        if self._looks_first and self._rounds is None:
            self._look(context)
        return self._step_all(context)

    async def step_local_part(self, context: Context) -> None:
        """Steps the parameters of this process, after the part on an owner has stepped."""
        if self.local is not None and not self.local.step_now(context):
            await BLOCKING.run(self.local.step, context)

    def apply_local_part(self, context: Context) -> None:
        """Like `step_local_part`, in this thread, which must not be that of the client's event loop."""
        if self.local is not None:
            self.local.step(context)

    def unscale(self, context: Context, scaler: torch.amp.GradScaler) -> Pending[None]:
        """Divides the gradients of a context by the scaler's scale, on all owners and here, before they are clipped.

        Raises:
            ContextEndedError: The context has ended.
            InvalidArgumentError: A gradient is float16.
            RuntimeError: The scaler has unscaled since its last update.
        """
        self._check_pass(context)
        if not scaler.is_enabled():
            return Pending.run(self._loop, _nothing())
        return Pending.run(self._loop, BLOCKING.run(self._scaled.unscale, self._work(context, scaler), scaler))

    def _work(self, context: Context, scaler: torch.amp.GradScaler) -> Work:
        unscale, step = partial(self._unscale_all, context), partial(self._step_all, context)
        return Work(context.id, scaler.get_scale(), unscale, step)

    def _unscale_all(self, context: Context, factor: float) -> Unscaled:
        asked = {name: part.unscale(context, factor) for name, part in self.remotes.items()}
        found = list(all_here(asked).values())
        if self.local is not None:
            found.append(self.local.unscale(context, factor))
        return Unscaled(any(each.present for each in found), any(each.non_finite for each in found))

    def _look(self, context: Context) -> None:
        """Raises the error that a step would raise before it changes anything, on any owner or here."""
        self._check_pass(context)
        if self.local is not None:
            self.local.check(context)
        all_here({name: part.step(context, version, check_only=True) for name, part in self.remotes.items()})

    def _step_all(self, context: Context) -> Stepped:
        if self._rounds is not None:
            self._check_pass(context)
            return self._rounds.step(context).wait()
        replies = all_here(self._begin(context))
        if any(each.owners for each in replies.values()):
            return Pending.run(self._loop, self._step_with_rounds(context, replies)).wait()
        self.apply_local_part(context)
        return _versions(replies)

    def _begin(self, context: Context) -> dict[str, Pending[StepReply]]:
        self._check_pass(context)
        if self.local is not None and not self._looks_first:
            self.local.check(context)
        apart = len(self.remotes) > 1
        return {name: part.step(context, answered, apart=apart) for name, part in self.remotes.items()}

    def _check_pass(self, context: Context) -> None:
        context.check(*[part.handle.session for part in self.remotes.values()])

    async def _step(self, context: Context, steps: Pending[dict[str, StepReply]]) -> Stepped:
        replies = await steps
        if any(each.owners for each in replies.values()):
            return await self._step_with_rounds(context, replies)
        await self.step_local_part(context)
        return _versions(replies)

    async def _step_with_rounds(self, context: Context, replies: dict[str, StepReply]) -> Stepped:
        """Goes on with a step after owners have said that another trainer has given the optimizer its first policy.

        If an owner had no rounds yet, and has applied its part, the others do, too. Else the step is made in a round.
        """
        refused = {name: reply for name, reply in replies.items() if reply.owners}
        policy = next(iter(refused.values())).policy
        if len(refused) == len(replies):
            self._no_local_part()
            self._rounds = await rounds.begun(self.remotes, policy, self._loop)
            return await self._rounds.take_part(context)
        finish = {name: self.remotes[name].step(context, answered, finish=True) for name in refused}
        replies = {**replies, **await all_of(finish)}
        await self.step_local_part(context)
        if self.local is None:
            self._rounds = await rounds.begun(self.remotes, policy, self._loop)
        return _versions(replies)

    # Gradients that replicas have added to a pass

    @property
    def sessions(self) -> list[Session]:
        """The sessions with the owners of its parts."""
        return [part.handle.session for part in self.remotes.values()]

    async def step_pushed(self, context: Context, added: Mapping[str, Sent], then: Then) -> Stepped:
        """Steps with the gradients of a context, once owners have accepted them. Raises the errors of `step`.

        Args:
            context: The pass.
            added: The requests that add gradients, by owner.
            then: Called with an owner, and with requests after which it has stepped; maybe again, with later ones.
        """
        if self._rounds is not None:
            return await self._rounds.take_part(context, added, then)
        if len(self.remotes) == 1:
            ((owner, part),) = self.remotes.items()
            only = part.step(context, partial(stepped, owner), follows=added.get(owner, ()))
            then(owner, [only])
            return await only
        replies = await pushed.step_parts(self.remotes, context, added, then, self._looks_first)
        if not any(each.owners for each in replies.values()):
            return _versions(replies)
        made = await self._step_with_rounds(context, replies)
        for name in self.remotes:
            then(name, ())
        return made

    def set_options(self, group: int | None = None, **options: Any) -> Pending[None]:
        """Changes options such as `lr` on every owner and here.

        Args:
            group: Index of the parameter group; None for all.
            options: The options and their new values.

        Raises:
            InvalidArgumentError: There is no such group or option.
            PsError: An owner failed; others may have changed theirs.
        """
        return Pending.run(self._loop, self._set_options(group, options))

    def set_policy(self, policy: Policy) -> Pending[None]:
        """Changes when gradients count, for all trainers and while they train. The open round ends with what it has.

        Args:
            policy: `Async`, `Sync`, `BoundedStaleness` or `Quorum`.

        Raises:
            InvalidArgumentError: The optimizer has parameters in this process.
            NameConflictError: It has parameters on several owners, and one of them has a policy for its part alone.
        """
        return Pending.run(self._loop, self._set_policy(policy))

    def leave(self) -> Pending[None]:
        """Says that this trainer steps no more, so that no round waits for it. Its next step joins again.

        A trainer whose client is closed, or which is lost, has left.

        Raises:
            InvalidArgumentError: The optimizer has parameters in this process.
        """
        return Pending.run(self._loop, self._leave())

    def part_on(self, session: Session) -> RemoteOptimizer:
        """Its part on one owner, if it has no other part.

        Args:
            session: This client's session with the owner.

        Raises:
            InvalidArgumentError: It has parameters elsewhere, or was made by another client.
        """
        part = self._only_part("the push of a replica")
        if part.handle.session is not session:
            raise InvalidArgumentError(f"{self!r} steps no module that this client has on owner {session.owner!r}")
        return part

    async def _set_policy(self, policy: Policy) -> None:
        self._no_local_part()
        if len(self.remotes) == 1:
            await self._only_part("a policy").set_policy(policy)
            return
        if self._rounds is None:
            plain = Value()
            Encoder(None).encode_into(plain, to_plain(policy))
            self._rounds = await rounds.begun(self.remotes, plain, self._loop)
        await self._rounds.change(policy)

    async def _leave(self) -> None:
        self._no_local_part()
        if self._rounds is not None:
            await self._rounds.leave()
        else:
            # If there are rounds over several owners by now, the first of them tells the others with the next step.
            await all_of({name: part.leave() for name, part in self.remotes.items()})

    def _no_local_part(self) -> None:
        if self.local is not None or not self.remotes:
            raise InvalidArgumentError(
                f"an optimizer with a policy has all of its parameters on owners, and none here; this is {self!r}"
            )

    def _only_part(self, what: str) -> RemoteOptimizer:
        if len(self.remotes) != 1 or self.local is not None:
            raise InvalidArgumentError(
                f"{what} needs an optimizer whose parameters are all on one owner; this is {self!r}"
            )
        (part,) = self.remotes.values()
        return part

    async def _set_options(self, group: int | None, options: dict[str, Any]) -> None:
        places = self._layout.places(group)
        if self.local is not None:
            self.local.check_options([place for name, place in places if name == Layout.LOCAL], options)
        await all_of(
            {
                f"{name}/{place}": self.remotes[name].set_options(place, options)
                for name, place in places
                if name in self.remotes
            }
        )
        for name, place in places:
            if self.local is not None and name == Layout.LOCAL:
                self.local.optimizer.param_groups[place].update(options)

    def state_dict(self) -> Pending[dict[str, Any]]:
        """The state of all parts, as the `state_dict` of one torch optimizer over the same parameters; on the CPU."""
        return Pending.run(self._loop, self._state_dict())

    async def _state_dict(self) -> dict[str, Any]:
        parts = await all_of({name: part.state_dict() for name, part in self.remotes.items()})
        if self.local is not None:
            parts[Layout.LOCAL] = self.local.state_dict()
        return self._layout.merge(parts)

    def load_state_dict(self, state: Mapping[str, Any]) -> Pending[None]:
        """Loads the state of a torch optimizer, or of another `DistributedOptimizer`, over the same parameters.

        Raises:
            InvalidArgumentError: It does not fit; nothing was changed on any owner or here.
        """
        return Pending.run(self._loop, self._load_state_dict(state))

    async def _load_state_dict(self, state: Mapping[str, Any]) -> None:
        parts = self._layout.split(state)
        if self.local is not None:
            self.local.check_state(parts[Layout.LOCAL])
        before = await all_of({name: part.state_dict() for name, part in self.remotes.items()})
        try:
            await all_of({name: part.load_state_dict(parts[name]) for name, part in self.remotes.items()})
        except InvalidArgumentError:
            # Some parts may have loaded it already.
            await all_of({name: part.load_state_dict(before[name]) for name, part in self.remotes.items()})
            raise
        if self.local is not None:
            self.local.load_state_dict(parts[Layout.LOCAL])

    def __repr__(self) -> str:
        parts = [*self.remotes, *(["this process"] if self.local else [])]
        return f"<DistributedOptimizer on {', '.join(parts)}>"


async def _nothing() -> None:
    """Does nothing."""


def _versions(replies: Mapping[str, StepReply]) -> Stepped:
    made = Stepped({name: reply.version for name, reply in replies.items()})
    made.staleness = max((reply.staleness for reply in replies.values()), default=0)
    return made
