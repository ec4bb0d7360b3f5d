"""Learning-rate schedules of tables and parameters together: a scheduler of each of their optimizers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from ps_wire.errors import InvalidArgumentError
from trainer_client.optimizers.results import all_of
from trainer_client.pending import Pending

if TYPE_CHECKING:
    from torch.optim import Optimizer, lr_scheduler

    from trainer_client.optimizers.optimizer import DistributedOptimizer
    from trainer_client.optimizers.scheduler import DistributedScheduler


class SchedulerWithTables:
    """A learning-rate scheduler for the parameters and one for each table of an optimizer. Made by `Client.scheduler`.

    All are of one class and have the same arguments. Each begins with the learning rate of its own optimizer, and is
    shared by all trainers.

    Attributes:
        parameters: That of the parameters; None if there are only tables, or all parameters are in this process.
        local: That of parameters of this process, if no other parameters are in the optimizer.
        tables: Those of the tables, by name.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        parameters: DistributedScheduler | None,
        local: lr_scheduler.LRScheduler | None,
        tables: Mapping[str, DistributedScheduler],
    ) -> None:
        self._loop = loop
        self.parameters, self.local = parameters, local
        self.tables = dict(tables)
        self._on_owners = [*([] if parameters is None else [parameters]), *tables.values()]

    def step(self, *args: Any) -> Pending[list[float]]:
        """Takes one step of all schedules.

        Args:
            args: Arguments of the scheduler's own `step`, such as the metric of `ReduceLROnPlateau`.

        Returns:
            The learning rates of the parameters, one per parameter group; without parameters, that of the first table.

        Raises:
            PsError: An owner failed; others may have taken the step.
        """
        return Pending.run(self._loop, self._step(dict(enumerate(each.step(*args) for each in self._on_owners)), args))

    async def _step(self, steps: Mapping[int, Pending[list[float]]], args: tuple[Any, ...]) -> list[float]:
        rates: dict[int, list[float]] = await all_of(steps)
        if self.local is None:
            return rates[0]
        self.local.step(*args)
        return [float(each) for each in self.local.get_last_lr()]

    def get_last_lr(self) -> Pending[list[float]]:
        """The present learning rates of the parameters, one per parameter group; without them, that of a table."""
        if self.local is None:
            return self._on_owners[0].get_last_lr()
        return Pending.run(self._loop, asyncio.sleep(0, [float(each) for each in self.local.get_last_lr()]))

    def state_dict(self) -> Pending[dict[str, Any]]:
        """The states: `parameters`, None if there are only tables, and `tables`, by name."""
        return Pending.run(self._loop, self._states())

    async def _states(self) -> dict[str, Any]:
        tables = await all_of({name: each.state_dict() for name, each in self.tables.items()})
        own = self.local.state_dict() if self.local is not None else None
        return {"parameters": own if self.parameters is None else await self.parameters.state_dict(), "tables": tables}

    def load_state_dict(self, state: Mapping[str, Any]) -> Pending[None]:
        """Loads states, as `state_dict` returns them.

        Raises:
            InvalidArgumentError: They are those of other tables; nothing was loaded. Or one does not fit; others may
                have been loaded.
        """
        has_parameters = self.parameters is not None or self.local is not None
        check_states(state, self.tables, has_parameters)
        return Pending.run(self._loop, self._load(state))

    async def _load(self, state: Mapping[str, Any]) -> None:
        await all_of({name: each.load_state_dict(state["tables"][name]) for name, each in self.tables.items()})
        if self.parameters is not None:
            await self.parameters.load_state_dict(state["parameters"])
        if self.local is not None:
            self.local.load_state_dict(dict(state["parameters"]))


async def create(
    parameters: DistributedOptimizer | None,
    optimizers: Mapping[str, DistributedOptimizer],
    make: Callable[..., Awaitable[DistributedScheduler]],
    make_local: Callable[[Optimizer], lr_scheduler.LRScheduler],
    name: str,
    loop: asyncio.AbstractEventLoop,
) -> SchedulerWithTables:
    """Makes a scheduler for each optimizer of tables, by name, and of parameters; errors as for `Client.scheduler`.
    `make` makes that of one with parts on owners, under a `name`, and `make_local` that of an optimizer of torch in
    this process. That of the parameters has the given name, and those of tables have the table's name behind it. An
    empty name is for the names of their optimizers."""
    tables = {table: await make(each, name=f"{name}.{table}" if name else "") for table, each in optimizers.items()}
    made, local = None, None
    if parameters is not None and parameters.remotes:
        made = await make(parameters, name=name)
    elif parameters is not None and parameters.local is not None:
        local = make_local(parameters.local.optimizer)
    return SchedulerWithTables(loop, made, local, tables)


def check_states(state: Any, tables: Mapping[str, Any], has_parameters: bool) -> None:
    """Raises `InvalidArgumentError` unless there is a state for each table, and one for parameters if any are there."""
    fits = isinstance(state, Mapping) and state.keys() == {"parameters", "tables"}
    if not fits or not isinstance(state["tables"], Mapping):
        raise InvalidArgumentError('the state of tables and parameters has the keys "parameters" and "tables"')
    if state["tables"].keys() != tables.keys():
        raise InvalidArgumentError(f"this is the state of tables {sorted(state['tables'])}, not of {sorted(tables)}")
    if (state["parameters"] is not None) != has_parameters:
        there = "no parameters" if has_parameters else "parameters, too"
        raise InvalidArgumentError(f"this is the state of an optimizer that has {there}")
