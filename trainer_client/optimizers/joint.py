"""Steps of several optimizers with the gradients of one pass: one request to each owner."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from ps_wire.runtime.threads import BLOCKING
from trainer_client.optimizers.replies import Answered, all_answered, answered, version
from trainer_client.optimizers.results import all_of

if TYPE_CHECKING:
    from ps_wire.reported import Reported
    from trainer_client.contexts.context import Context
    from trainer_client.optimizers.optimizer import DistributedOptimizer
    from trainer_client.optimizers.parts import RemoteOptimizer
    from trainer_client.session.in_flight import InFlightRequest, Read
    from trainer_client.session.stepped import Stepped

T = TypeVar("T")


class _Member(NamedTuple):
    """The part of an optimizer on an owner, with the number of the optimizer."""

    number: int
    part: RemoteOptimizer


class JointSteps:
    """Steps several optimizers as one; an owner applies all of its parts or none of them.

    If there are several owners, or parameters of this process, all check the gradients before one of them steps.
    Optimizers with a policy take part in their own rounds, each by itself, once all have accepted the gradients.
    """

    def __init__(self, optimizers: Sequence[DistributedOptimizer]) -> None:
        self._optimizers = list(optimizers)
        self._local = [each for each in optimizers if each.local is not None]
        owners = {owner for each in optimizers for owner in each.remotes}
        self.checks_ahead: Final = not self._local and len(owners) > 1
        # Numbers of those that an owner has left out, because they have a policy.
        self._by_itself: set[int] = set()

    async def step(self, context: Context, values: Mapping[str, Reported], accepted: bool = False) -> list[Stepped]:
        """Steps all of them with a pass whose backwards have ended, maybe `accepted` by all owners.

        The values are for the first optimizer. If the first error is one of gradients or values, nothing was applied.
        """
        for each in self._optimizers:
            each.check_pass(context)
        alone = {number for number, each in enumerate(self._optimizers) if each.has_rounds} | self._by_itself
        together = self._by_owner(number for number in range(len(self._optimizers)) if number not in alone)
        if not accepted and (self._local or alone or len(together) > 1):
            await self._check(context, values)
        parts = asyncio.ensure_future(self._step_on_owners(context, together, values))

        async def step(number: int, values: Mapping[str, Reported]) -> Stepped:
            optimizer = self._optimizers[number]
            if number in alone:
                return await optimizer.step_accepted(context, values)
            return await optimizer.finish_step(context, (await parts)[number], values)

        own = (values, *({} for _ in self._optimizers[1:]))
        return list((await all_of({number: step(number, each) for number, each in enumerate(own)})).values())

    def _by_owner(self, numbers: Iterable[int]) -> dict[str, list[_Member]]:
        found: dict[str, list[_Member]] = {}
        for number in numbers:
            for owner, part in self._optimizers[number].remotes.items():
                found.setdefault(owner, []).append(_Member(number, part))
        return found

    def _values_on(self, owner: str, number: int, values: Mapping[str, Reported]) -> Mapping[str, Reported] | None:
        """The values for the step of an optimizer on an owner: that of the first optimizer, on its first owner."""
        return values if number == 0 and owner == min(self._optimizers[0].remotes, default="") else None

    async def _check(self, context: Context, values: Mapping[str, Reported]) -> None:
        """Raises the error that a step would raise before it changes anything, on any owner or here."""
        if self._local:
            await asyncio.gather(*(BLOCKING.run(each.check_local_part, context) for each in self._local))
        everything = self._by_owner(range(len(self._optimizers)))
        await all_of(self._asked(everything, context, version, values, check_only=True))

    def _asked(
        self,
        together: Mapping[str, Sequence[_Member]],
        context: Context,
        read: Read[T],
        values: Mapping[str, Reported],
        **how: Any,
    ) -> dict[str, InFlightRequest[T]]:
        """Asks each owner for the steps of its parts, all of them or none."""
        asked = {}
        for owner, (first, *more) in together.items():
            own = self._values_on(owner, first.number, values)
            asked[owner] = first.part.step(context, read, more=[each.part for each in more], values=own, **how)
        return asked

    async def _step_on_owners(
        self, context: Context, together: dict[str, list[_Member]], values: Mapping[str, Reported]
    ) -> list[dict[str, Answered]]:
        """The answers of owners for each optimizer."""
        asked = self._asked(together, context, all_answered, values, apart=True)
        answers: list[dict[str, Answered]] = [{} for _ in self._optimizers]
        left_out = {}
        for owner, told in (await all_of(asked)).items():
            for (number, part), answer in zip(together[owner], told, strict=True):
                answers[number][owner] = answer
                if answer.reply.by_itself:
                    self._by_itself.add(number)
                    left_out[number, owner] = part
        apart = {}
        for (number, owner), part in left_out.items():
            several, own = len(self._optimizers[number].remotes) > 1, self._values_on(owner, number, values)
            apart[number, owner] = part.step(context, answered, apart=several, values=own)
        for (number, owner), answer in (await all_of(apart)).items():
            answers[number][owner] = answer
        return answers
