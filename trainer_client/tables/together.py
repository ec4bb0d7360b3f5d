"""One optimizer made of several: those of tables, and one over parameters of modules and of this process."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from ps_wire.errors import InvalidArgumentError
from trainer_client.contexts.closing import Stepping
from trainer_client.contexts.stepped import Stepped
from trainer_client.optimizers.joint import JointSteps
from trainer_client.optimizers.results import all_of

if TYPE_CHECKING:
    import asyncio

    from ps_wire.reported import Reported
    from trainer_client.contexts.context import Context
    from trainer_client.optimizers.optimizer import DistributedOptimizer
    from trainer_client.optimizers.pushed import Sent, Then
    from trainer_client.pending import Pending
    from trainer_client.tables.table import Table


class OptimizerWithTables(Stepping):
    """Steps tables and parameters with the gradients of one context. Made by `Client.optimizer`.

    Each table keeps its own optimizer, with its own options and its own policy.

    Attributes:
        parameters: The optimizer of the parameters; None if there are only tables.
        tables: The optimizers of the tables, by name.
    """

    has_local_part = False
    steps_together = True

    def __init__(
        self, loop: asyncio.AbstractEventLoop, parameters: DistributedOptimizer | None, tables: Mapping[str, Any]
    ) -> None:
        self._loop = loop
        self.parameters = parameters
        self.tables: dict[str, DistributedOptimizer] = dict(tables)
        everything = [*([] if parameters is None else [parameters]), *self.tables.values()]
        self.parts = [part for each in everything for part in each.parts]
        owners = {part.session for part in self.parts}
        self.is_joinable = len(owners) == 1 and (parameters is None or not parameters.has_local_part)
        self._steps = JointSteps(everything)

    def step(self, context: Context) -> Pending[Stepped]:
        """Applies the gradients of a context: to all tables and parameters, unless an owner refuses them.

        Each owner gets one request, and applies all of it or nothing. If there are several owners, or parameters of
        this process, all check the gradients first. If one refuses them, nothing is changed on any owner or here. An
        optimizer with a policy then takes part in its own rounds.

        Returns:
            The versions, as `DistributedOptimizer.step`; those of a table under "owner/table".

        Raises:
            NonFiniteGradientError, InvalidArgumentError, TooLargeError: An owner refuses the gradients.
            PsError: An owner failed. Others may have applied their parts.
        """
        stepping = context.behind_backwards(self._step(context))
        stepping.origin = None, None, context.failures, self, "step"
        return stepping

    async def _step(self, context: Context) -> Stepped:
        return self.merged(await self._steps.step(context))

    def apply(self, context: Context) -> Stepped:
        """Like `step`, in this thread, which must not be that of the client's event loop."""
        return self.step(context).wait()

    @property
    def of_parameters(self) -> DistributedOptimizer | None:
        """The optimizer of what is no table; None if there are only tables."""
        return self.parameters

    async def step_pushed(
        self, context: Context, added: Mapping[str, Sent], then: Then, values: Mapping[str, Reported]
    ) -> Stepped:
        """Steps with the gradients of a context, once owners have accepted those that replicas have added.

        Arguments as for `DistributedOptimizer.step_pushed`. What the result says of a policy is that of the
        parameters' optimizer.

        Raises:
            InvalidArgumentError: There are values, which a step with tables does not take.
            PsError: As in `step`.
        """
        if values:
            raise InvalidArgumentError("a step of tables takes no values; report them with a step of the parameters")
        await all_of({str(place): each for place, each in enumerate(chain(*added.values()))})
        context.check()
        steps = await self._steps.step(context)
        made = self.merged(steps)
        if self.parameters is not None:
            of_parameters = steps[0]
            made.staleness, made.counted = of_parameters.staleness, of_parameters.counted
            made.dropped, made.reported = of_parameters.dropped, of_parameters.reported
            for owner in self.parameters.remotes:
                then(owner, ())
        return made

    async def step_local_part(self, context: Context) -> None:
        """Has been done by `step`."""

    def apply_local_part(self, context: Context) -> None:
        """Has been done by `step`."""

    def merged(self, steps: Sequence[Stepped]) -> Stepped:
        """The versions of all optimizers as one result."""
        names = [*([] if self.parameters is None else [""]), *self.tables]
        versions: dict[str, int] = {}
        for name, each in zip(names, steps, strict=True):
            versions |= {f"{owner}/{name}" if name else owner: version for owner, version in each.items()}
        return Stepped(versions)

    def set_options(self, group: int | None = None, **options: Any) -> Pending[None]:
        """Changes options such as `lr` of the parameters' optimizer; `tables[name].set_options()` does for a table.

        Raises:
            InvalidArgumentError: There are only tables, or there is no such group or option.
        """
        if self.parameters is None:
            raise InvalidArgumentError("this optimizer has tables only: use set_options() of each in `tables`")
        return self.parameters.set_options(group, **options)

    def __repr__(self) -> str:
        tables = ", ".join(self.tables)
        return f"<OptimizerWithTables {tables}{f' and {self.parameters!r}' if self.parameters is not None else ''}>"


async def together(
    loop: asyncio.AbstractEventLoop, tables: Sequence[Table], parameters: Awaitable[DistributedOptimizer] | None
) -> OptimizerWithTables:
    """An optimizer of tables, and of parameters whose optimizer is being made."""
    own = None if parameters is None else await parameters
    return OptimizerWithTables(loop, own, {each.name: each.optimizer for each in tables})
