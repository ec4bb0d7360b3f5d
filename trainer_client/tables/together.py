"""One optimizer made of several: those of tables, and one over parameters of modules and of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar, overload

from ps_wire.errors import InvalidArgumentError
from ps_wire.policies import Policy, check
from ps_wire.refs import ContextId
from ps_wire.reported import Reductions, Report, Reported, Values, reported
from ps_wire.runtime.failures import Origin
from ps_wire.runtime.noop import noop
from ps_wire.runtime.threads import BLOCKING
from trainer_client.contexts.closing import Stepping
from trainer_client.contexts.moved_rows import following
from trainer_client.handles import hints
from trainer_client.optimizers.replies import Answered, ReportedValues, all_answered, answered
from trainer_client.optimizers.results import all_of, one_by_one
from trainer_client.optimizers.scaling import PushScaling, Scaled, Work
from trainer_client.pending import Pending
from trainer_client.session.step_mistakes import check_scaler, check_unscale, warn_of_another, without_context
from trainer_client.session.stepped import Stepped
from trainer_client.tables.schedules import check_states

if TYPE_CHECKING:
    import torch

    from trainer_client.contexts.context import Context
    from trainer_client.optimizers.optimizer import DistributedOptimizer
    from trainer_client.optimizers.parts import RemoteOptimizer, Sent, Then
    from trainer_client.session.in_flight import InFlightRequest, Read

T = TypeVar("T")


class _Member(NamedTuple):
    """The part of an optimizer on an owner, with the number of the optimizer."""

    number: int
    part: RemoteOptimizer


class OptimizerWithTables(Stepping, PushScaling):
    """Steps tables and parameters with the gradients of one context. Made by `Client.optimizer`.

    Each table keeps its own optimizer, with its own options and its own policy.

    Attributes:
        parameters: The optimizer of the parameters; None if there are only tables.
        tables: The optimizers of the tables, by name.
        scaled: What a GradScaler gets in its place.
    """

    steps_together = True

    def __init__(
        self, loop: asyncio.AbstractEventLoop, parameters: DistributedOptimizer | None, tables: Mapping[str, Any]
    ) -> None:
        self._loop = loop
        self.parameters = parameters
        self.tables: dict[str, DistributedOptimizer] = dict(tables)
        self._all = [*([] if parameters is None else [parameters]), *self.tables.values()]
        self._local = [each for each in self._all if each.local is not None]
        self.scaled = Scaled()
        self.left_owners = [each.left for each in self._all]
        # Numbers of those that an owner has left out, because they have a policy.
        self._by_itself: set[int] = set()
        self.look_at_parts()
        for each in self._all:
            each.used_by.add(self)

    def look_at_parts(self) -> None:
        """Takes up which owners have parts of the optimizers; rows of tables may have moved to others."""
        self.parts = [part for each in self._all for part in each.parts]
        self.remote_parts = [part for each in self._all for part in each.remotes.values()]
        owners = {part.session for part in self.parts}
        self.is_joinable = len(owners) == 1 and not self._local
        # Owners with a log keep gradients when they are asked for that alone.
        self.checks_ahead = len(owners) > 1 and not self._local and not any(each.prepares for each in owners)

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
        """Applies the gradients of a context: to all tables and parameters, unless an owner refuses them.

        Each owner gets one request, and applies all of it or nothing. If there are several owners, or parameters of
        this process, all check the gradients first. If one refuses them, nothing is changed on any owner or here. An
        optimizer with a policy then takes part in its own rounds.

        Args:
            context: The pass.
            scaler: The scaler of the loss, as in `DistributedOptimizer.step`: all step, or none.
            values: Plain values to report with the gradients, as there. The parameters' optimizer counts them.
            reduce: How it reduces them.

        Returns:
            The versions, as `DistributedOptimizer.step`; those of a table under "owner/table". What it says of a policy
            and of values is that of the parameters' optimizer. None if the scaler has skipped the step.

        Raises:
            NonFiniteGradientError, InvalidArgumentError, TooLargeError: An owner refuses the gradients or the values,
                or there are values and only tables.
            PsError: An owner failed. Others may have applied their parts.
            RuntimeError: The scaler raised it.
        """
        if context is None or not isinstance(getattr(context, "id", None), ContextId):
            raise without_context()
        if scaler is not None:
            check_scaler(scaler)
        if self in context.steps:
            warn_of_another(context, self)
        stepping = context.behind_backwards(self._begin(context, scaler, self.report(values, reduce)))
        stepping.origin = Origin(self, "step", context.failures)
        context.steps[self] = stepping
        return stepping

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
        return self.step(context, scaler, values=values, reduce=reduce).wait()

    def unscale(self, context: Context, scaler: torch.amp.GradScaler) -> Pending[None]:
        """Divides the gradients of a context by the scaler's scale, as `DistributedOptimizer.unscale`."""
        check_unscale(context, scaler)
        if not scaler.is_enabled():
            return Pending.run(self._loop, asyncio.sleep(0))
        return context.change_gradients(BLOCKING.run(self.scaled.unscale, self._work(context, scaler, {}), scaler))

    def report(self, values: Values, reduce: Reductions) -> Report:
        if not values:
            return Report()
        if self.parameters is None:
            raise InvalidArgumentError(
                "values are counted by an optimizer of parameters, and this one has tables only: report them with a "
                "step of a table's own optimizer, `table.optimizer.step(ctx, values=...)`"
            )
        return reported(values, reduce)

    async def _begin(
        self, context: Context, scaler: torch.amp.GradScaler | None, values: Mapping[str, Reported]
    ) -> Stepped | None:
        if scaler is None or not scaler.is_enabled():
            return await self._step(context, values)
        work = self._work(context, scaler, values)
        return await BLOCKING.run(self.scaled.step_unless_infinite, work, scaler)

    async def follow_rows(self) -> None:
        for each in self.tables.values():
            await each.follow_rows()

    async def _step(self, context: Context, values: Mapping[str, Reported], accepted: bool = False) -> Stepped:
        steps = await following(self.follow_rows, lambda: self._step_each(context, values, accepted))
        made = self.merged(steps)
        if self.parameters is not None:
            of_parameters = steps[0]
            made.counted, made.dropped = of_parameters.counted, of_parameters.dropped
            made.reported = of_parameters.reported
        return made

    def _work(self, context: Context, scaler: torch.amp.GradScaler, values: Mapping[str, Reported]) -> Work:
        context.check(*(part.session for part in self.parts))
        here = [each.local.unscale for each in self._all if each.local is not None]
        unscale = partial(self.unscale_parts, here, context)
        return Work(
            context.id, scaler.get_scale(), unscale, lambda: Pending.run(self._loop, self._step(context, values)).wait()
        )

    def check_local_part(self, context: Context) -> None:
        for each in self._local:
            each.check_local_part(context)

    def step_accepted(self, context: Context, values: Mapping[str, Reported]) -> Pending[Stepped]:
        return Pending.run(self._loop, self._step(context, values, accepted=True))

    def first_part(self) -> RemoteOptimizer:
        assert self.parameters is not None  # or values are refused
        return self.parameters.first_part()

    @property
    def of_parameters(self) -> DistributedOptimizer | None:
        """The optimizer of what is no table; None if there are only tables."""
        return self.parameters

    async def step_pushed(
        self, context: Context, added: Mapping[str, Sent], then: Then, values: Mapping[str, Reported]
    ) -> Stepped:
        """As `DistributedOptimizer.step_pushed`. What the result says of policy and values is that of parameters."""
        await all_of({str(place): each for place, each in enumerate(chain(*added.values()))})
        context.check()
        made = await self._step(context, values)
        if self.parameters is not None:
            for owner in self.parameters.remotes:
                then(owner, ())
        return made

    def merged(self, steps: Sequence[Stepped]) -> Stepped:
        """The versions of all optimizers as one result."""
        names = [*([] if self.parameters is None else [""]), *self.tables]
        versions: dict[str, int] = {}
        durable: dict[str, int] = {}
        for name, each in zip(names, steps, strict=True):
            for found, own in ((versions, each), (durable, each.durable)):
                found.update((f"{owner}/{name}" if name else owner, version) for owner, version in own.items())
        made = Stepped(versions, durable=durable)
        if self.parameters is not None:
            made.staleness = steps[0].staleness
        return made

    def set_options(self, group: int | None = None, **options: Any) -> Pending[None]:
        """Changes options such as `lr` of the parameters' optimizer; `tables[name].set_options()` does for a table.

        Raises:
            InvalidArgumentError: There are only tables, or there is no such group or option.
        """
        if self.parameters is None:
            raise InvalidArgumentError("this optimizer has tables only: use set_options() of each in `tables`")
        return self.parameters.set_options(group, **options)

    def set_policy(self, policy: Policy) -> Pending[None]:
        """Changes when gradients count, of the parameters and of each table, as `DistributedOptimizer.set_policy`.

        Raises:
            InvalidArgumentError: This is no policy, or there are parameters in this process; nothing was changed.
            PsError: An owner failed; others may have changed theirs.
        """
        check(policy)
        if self._local:
            raise InvalidArgumentError(
                "a policy for all of them needs an optimizer without parameters of this process; use those in "
                ".parameters and .tables"
            )
        return Pending.run(self._loop, one_by_one(partial(each.set_policy, policy) for each in self._all))

    def leave(self) -> Pending[None]:
        """Says that this trainer steps no more, so that no round of the parameters or of a table waits for it.

        A step joins again.
        """
        return Pending.run(self._loop, one_by_one(each.leave for each in self._all if each.local is None))

    def values(self, *, reset: bool = True) -> Pending[ReportedValues]:
        """The values that trainers have reported with steps, which the parameters' optimizer counts; as there.

        Raises:
            InvalidArgumentError: There are only tables, or all parameters are in this process.
        """
        if self.parameters is None:
            raise InvalidArgumentError("values are counted by an optimizer of parameters, and this one has tables only")
        return self.parameters.values(reset=reset)

    def state_dict(self) -> Pending[dict[str, Any]]:
        """The states of the optimizers: `parameters`, None if there are only tables, and `tables`, by name.

        Those of tables have their options. What they keep for rows is with the rows: `Table.export` writes it.
        """
        return Pending.run(self._loop, self._states())

    async def _states(self) -> dict[str, Any]:
        tables = await all_of({name: each.state_dict() for name, each in self.tables.items()})
        return {"parameters": None if self.parameters is None else await self.parameters.state_dict(), "tables": tables}

    def load_state_dict(self, state: Mapping[str, Any]) -> Pending[None]:
        """Loads states, as `state_dict` returns them.

        Raises:
            InvalidArgumentError: They do not fit, or are those of other tables; nothing was changed anywhere.
        """
        check_states(state, self.tables, self.parameters is not None)
        return Pending.run(self._loop, self._load(state))

    async def _load(self, state: Mapping[str, Any]) -> None:
        before = await all_of({name: each.state_dict() for name, each in self.tables.items()})
        try:
            await all_of({name: each.load_state_dict(state["tables"][name]) for name, each in self.tables.items()})
            if self.parameters is not None:
                await self.parameters.load_state_dict(state["parameters"])
        except InvalidArgumentError:
            # Some may have loaded it already.
            await all_of({name: each.load_state_dict(before[name]) for name, each in self.tables.items()})
            raise

    # Steps of all, with one request to each owner

    async def _step_each(self, context: Context, values: Mapping[str, Reported], accepted: bool) -> list[Stepped]:
        """Steps each with a pass whose backwards have ended, maybe `accepted` by all owners. Those with a policy take
        part in their own rounds, once all have accepted the gradients. The values are for the first. If the first error
        is one of gradients or values, nothing was applied."""
        for each in self._all:
            each.check_pass(context)
            await each.left.confirm(context)
        alone = {number for number, each in enumerate(self._all) if each.has_rounds} | self._by_itself
        together = self._by_owner(number for number in range(len(self._all)) if number not in alone)
        if checks := not accepted and bool(self._local or alone or len(together) > 1):
            await self._check_all(context, values)
        compares = not (accepted or checks)
        parts = asyncio.ensure_future(self._step_on_owners(context, together, values, compares))

        async def step(number: int, values: Mapping[str, Reported]) -> Stepped:
            optimizer = self._all[number]
            if number in alone:
                return await optimizer.step_accepted(context, values)
            return await optimizer.finish_step(context, (await parts)[number], values)

        own = (values, *({} for _ in self._all[1:]))
        return list((await all_of({number: step(number, each) for number, each in enumerate(own)})).values())

    def _by_owner(self, numbers: Iterable[int]) -> dict[str, list[_Member]]:
        found: dict[str, list[_Member]] = {}
        for number in numbers:
            for owner, part in self._all[number].remotes.items():
                found.setdefault(owner, []).append(_Member(number, part))
        return found

    def _values_on(self, owner: str, number: int, values: Mapping[str, Reported]) -> Mapping[str, Reported] | None:
        """The values for the step of an optimizer on an owner: that of the first optimizer, on its first owner."""
        return values if number == 0 and owner == min(self._all[0].remotes, default="") else None

    async def _check_all(self, context: Context, values: Mapping[str, Reported]) -> None:
        """Raises the error that a step would raise before it changes anything, on any owner or here."""
        if self._local:
            await BLOCKING.run(self.check_local_part, context)
        everything = self._by_owner(range(len(self._all)))
        prepare = len(everything) > 1 and any(of[0].part.session.prepares for of in everything.values())
        await all_of(self._asked(everything, context, noop, values, check_only=True, prepare=prepare))

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
        self, context: Context, together: dict[str, list[_Member]], values: Mapping[str, Reported], compares: bool
    ) -> list[dict[str, Answered]]:
        """The answers of owners for each optimizer."""
        asked = self._asked(together, context, all_answered, values, apart=True, compares=compares)
        answers: list[dict[str, Answered]] = [{} for _ in self._all]
        apart = {}
        for owner, told in (await all_of(asked)).items():
            for (number, part), answer in zip(together[owner], told, strict=True):
                answers[number][owner] = answer
                if answer.reply.by_itself:
                    self._by_itself.add(number)
                    several, own = len(self._all[number].remotes) > 1, self._values_on(owner, number, values)
                    apart[number, owner] = part.step(context, answered, apart=several, values=own)
        for (number, owner), answer in (await all_of(apart)).items():
            answers[number][owner] = answer
        return answers

    if not TYPE_CHECKING:  # a checker of types knows which names there are

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"an optimizer over tables has no {name!r}; its optimizers are in .parameters and .tables, by name"
            )

    def __repr__(self) -> str:
        tables = ", ".join(self.tables)
        return f"<OptimizerWithTables {tables}{f' and {self.parameters!r}' if self.parameters is not None else ''}>"


# As that of `DistributedOptimizer`: schedulers of torch refuse it with this name alone.
OptimizerWithTables.__name__ = hints.OPTIMIZER.replace("DistributedOptimizer", "OptimizerWithTables")
