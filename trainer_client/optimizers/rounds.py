"""Steps of an optimizer with a policy over several owners: all of them take the same gradients in the same round.

The first owner decides. A step has the other owners hold their gradients, offers the gradients to the first, and brings
what that has decided to the others. This is a two-phase commit whose messages a trainer carries: `hold` prepares,
`offer` asks the coordinator to decide, and `settle` commits, or aborts. See "Policies" in docs/architecture.md.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from ps_wire.attempts import REPEATED
from ps_wire.errors import ContextLostError, DrainingError, PsError, RemoteError, SessionLostError
from trainer_client.optimizers.results import all_of
from trainer_client.pending import Pending
from trainer_client.session.stepped import Stepped, durable_in

if TYPE_CHECKING:
    from ps_wire.reported import Reported
    from ps_wire.v1 import operations_pb2 as pb
    from ps_wire.v1.values_pb2 import Value
    from trainer_client.contexts.context import Context
    from trainer_client.optimizers.parts import RemoteOptimizer, Sent, Then
    from trainer_client.optimizers.replies import Answered

_TRIES: Final = 4
"""How often a step begins anew, because the trainer had left, or because an owner has lost decisions."""

_OUTDATED: Final = "outdated"
"""Why an offer of a trainer that has left does not count. It was in no round."""

_NOTHING: Final[Mapping[str, Any]] = {}

_WITHDRAWN: Final = "withdrawn"
"""Why an offer that was taken back does not count."""

_NUMBERS: Final = itertools.count(1)
"""Numbers of the offers of all optimizers of this process."""

_SOON: Final = 0.2
"""Seconds after which a step waits long. Most rounds are complete by then, and cost no further request."""


class Rounds:
    """Rounds over several owners, of which the first decides, for one trainer; the epoch is the number of its join."""

    def __init__(self, parts: Mapping[str, RemoteOptimizer], epoch: int, loop: asyncio.AbstractEventLoop) -> None:
        (self._first, self._leader), *others = parts.items()
        self._followers = dict(others)
        self._epoch = epoch
        self._loop = loop
        self._ending: set[Pending[None]] = set()

    async def change(self, policy: Value) -> None:
        """Changes when gradients count, on all owners between the same two rounds."""
        await self._settle(await self._leader.set_policy(policy))

    async def leave(self) -> None:
        """Rounds do not wait for this trainer any more. Its next step joins again."""
        decisions = await self._leader.leave()
        self._epoch = decisions.epoch
        await self._settle(decisions)

    async def go_on(self, applied: Mapping[str, int]) -> None:
        """Has all owners go on with the same decision, after what each says that it has carried out."""
        await self._settle((await self._leader.withdraw(0, 0, applied)).decisions)

    async def take_part(
        self,
        context: Context,
        values: Mapping[str, Reported],
        added: Mapping[str, Sent] = _NOTHING,
        then: Then | None = None,
    ) -> Stepped:
        """Offers the gradients of a context to a round; returns once that is complete on all owners. The first owner
        counts the values. For gradients on their way see `DistributedOptimizer.step_pushed`. Raises `ContextLostError`
        if an owner has lost gradients of the round, and has stepped without them."""
        for _ in range(_TRIES):
            number, epoch = next(_NUMBERS), self._epoch
            reply, of_round = await self._offer(context, number, epoch, values, added)
            self._epoch = reply.decisions.epoch
            if reply.dropped != _OUTDATED:
                break
            # Before this offer the session with the first owner has ended, or this trainer has left.
            self._afterwards(self._release(number, epoch))
        else:
            raise SessionLostError(f"owner {self._first!r} has ended this trainer's part in the rounds again and again")
        if reply.dropped == REPEATED:
            self._afterwards(self._release(number, epoch))
        try:
            if then is not None:
                then(self._first, ())
            settled = await self._settle(reply.decisions, number, epoch, then, reply.version)
        except BaseException:
            self._afterwards(self._give_up(number, epoch))
            raise
        _check(settled, reply)
        versions = {self._first: reply.version} | {owner: each.version for owner, each in settled.items()}
        return Stepped(versions, reply, of_round, durable_in({self._first: reply, **settled}))

    async def _offer(
        self, context: Context, number: int, epoch: int, values: Mapping[str, Reported], added: Mapping[str, Sent]
    ) -> Answered:
        applied: dict[str, int] = {}
        try:
            # An owner that has lost the session would take this for a pass without gradients there.
            sessions = [part.session for part in (self._leader, *self._followers.values())]
            context.check(*sessions)
            if epoch:
                held = {
                    name: part.hold(context, number, epoch, added.get(name, ()))
                    for name, part in self._followers.items()
                }
                applied = await all_of(held)
                context.check(*sessions)
        except BaseException:
            self._epoch = 0  # it may have ended; the next step asks for it
            self._afterwards(self._release(number, epoch))
            raise
        with self._watching_drains(number, epoch) as drained:
            try:
                follows = added.get(self._first, ())
                answered = await self._leader.offer(context, number, epoch, applied, values, follows)
                if answered.reply.dropped == _WITHDRAWN and drained:
                    raise drained[0]
            except BaseException:
                self._afterwards(self._give_up(number, epoch))
                raise
        return answered

    @contextmanager
    def _watching_drains(self, number: int, epoch: int) -> Iterator[Sequence[DrainingError]]:
        """Takes an offer back when an owner that holds its gradients drains. That owner waits for the pass to end."""
        drained: list[DrainingError] = []
        tasks: list[asyncio.Task[None]] = []

        async def watch(part: RemoteOptimizer) -> None:
            # Other errors are those of the step, too: of the offer, or when the round is brought to this owner.
            with suppress(PsError):
                try:
                    await part.watch()
                except DrainingError as error:
                    drained.append(DrainingError(f"owner {part.owner!r}: {error}"))
                    await self._leader.withdraw(number, epoch, {})

        def begin() -> None:
            tasks.extend(asyncio.create_task(watch(part)) for part in self._followers.values())

        timer = self._loop.call_later(_SOON, begin)
        try:
            yield drained
        finally:
            # The round is complete, or nobody waits for it any more.
            timer.cancel()
            for task in tasks:
                task.cancel()

    async def _settle(
        self, decisions: pb.Decisions, number: int = 0, epoch: int = 0, then: Then | None = None, step: int = 0
    ) -> dict[str, pb.SettleReply]:
        """Brings decisions to the owners that follow. They tell their versions after a step of the first owner."""
        for _ in range(_TRIES):
            asked = {name: part.settle(number, epoch, decisions, step) for name, part in self._followers.items()}
            if then is not None:
                for name, settling in asked.items():
                    then(name, [settling])
            settled: dict[str, pb.SettleReply] = await all_of(asked)
            applied = {name: each.applied for name, each in settled.items()}
            if min(applied.values()) >= decisions.first + len(decisions.decisions) - 1:
                break
            # An owner has started again, and knows less than before.
            decisions = (await self._leader.withdraw(0, 0, applied)).decisions
        return settled

    async def _release(self, number: int, epoch: int) -> None:
        """Frees gradients that were not offered."""
        asked = [part.settle(number, epoch, None) for part in self._followers.values()]
        await asyncio.gather(*asked, return_exceptions=True)

    async def _give_up(self, number: int, epoch: int) -> None:
        """Takes an offer back, if it is in no round yet."""
        try:
            reply = await self._leader.withdraw(number, epoch, {})
            await self._settle(reply.decisions)
        except PsError:
            pass  # it is freed when another trainer steps, or when the session of this one ends

    def _afterwards(self, work: Coroutine[Any, Any, None]) -> None:
        """Lets a coroutine run beside what the caller does next."""
        pending: Pending[None] = Pending.run(self._loop, work)
        self._ending.add(pending)
        pending.on_done(lambda: self._ending.discard(pending))


async def begun(parts: Mapping[str, RemoteOptimizer], policy: Value, loop: asyncio.AbstractEventLoop) -> Rounds:
    """Has the parts of an optimizer without rounds take part in rounds over their owners, by name. The policy counts if
    there are no such rounds yet. Raises `NameConflictError` if an owner has rounds over other owners, or by itself. If
    one owner fails, others may take part."""
    owners = sorted(parts)
    told = await all_of({name: parts[name].set_policy(policy, owners) for name in owners})
    return Rounds({name: parts[name] for name in owners}, told[owners[0]].epoch, loop)


def _check(settled: Mapping[str, pb.SettleReply], reply: pb.StepReply) -> None:
    for owner, each in settled.items():
        if each.missing:
            raise ContextLostError(
                f"owner {owner!r} has lost {each.missing} of the {reply.counted} gradients of step {reply.version}, "
                "because it has started again, and has stepped without them; the other owners have taken all"
            )
        if each.failed:
            kind, _, text = each.failed.partition(": ")
            raise RemoteError(f"{text} (step {reply.version} is not applied on owner {owner!r})", kind)
