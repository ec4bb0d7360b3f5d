"""The methods of a client that make optimizers and schedulers, or give those that exist."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import optim
from torch.optim import lr_scheduler

from ps_wire.arguments import check_flag, check_text
from ps_wire.errors import InvalidArgumentError
from trainer_client.pending import Pending
from trainer_client.replicas import local_steps
from trainer_client.tables import schedules
from trainer_client.tables.together import OptimizerWithTables

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine

    import torch

    from ps_wire.policies import Policy
    from trainer_client.client.sessions import Sessions
    from trainer_client.handles.parameters import RemoteParameter
    from trainer_client.optimizers.creation import NonFinite
    from trainer_client.optimizers.optimizer import DistributedOptimizer
    from trainer_client.optimizers.scheduler import DistributedScheduler
    from trainer_client.replicas.exchange import Reads
    from trainer_client.replicas.replica import Replica, Replicas
    from trainer_client.tables.creation import Tables
    from trainer_client.tables.table import Table


class Makers(NamedTuple):
    """What makes optimizers and schedulers of owners and of this process, and finds those that there are: functions of
    `trainer_client.optimizers`. `schedule` is the class of schedulers, made of the parts that were found."""

    optimizer: Callable[..., Coroutine[Any, Any, Any]]
    scheduler: Callable[..., Coroutine[Any, Any, Any]]
    local_scheduler: Callable[..., Any]
    schedule: Callable[[list[Any], None], Any]
    find_optimizer: Callable[..., Coroutine[Any, Any, Any]]
    find_scheduler: Callable[..., Coroutine[Any, Any, list[Any]]]


class TrainingMethods:
    """What a client does with optimizers."""

    _makers: Makers

    _tables: Tables
    _sessions: Sessions
    _loop: asyncio.AbstractEventLoop

    def optimizer(
        self,
        cls: type[optim.Optimizer] | str | None = None,
        parameters: Iterable[RemoteParameter | torch.Tensor | Table | Mapping[str, Any]] | None = None,
        *,
        name: str = "",
        reads: Reads = "consistent",
        non_finite: NonFinite = "apply",
        policy: Policy | None = None,
        replace: bool = False,
        **options: Any,
    ) -> Pending[Any]:
        """Makes an optimizer on the owners of the parameters, or attaches to an existing one.

        Trainers that ask for the same optimizer of the same named objects share it. With its name alone,
        `ps.optimizer(name="net.optimizer")` gives one that exists, with its parts on all owners, whatever it was made
        with. Parameters in the process of who has made it are not in it.

        Args:
            cls: A class of `torch.optim`, or one marked `@hosted`. None if there are only tables; or, without
                `parameters`, for the optimizer of that name.
            parameters: Handles of remote parameters, and local parameters; or groups of them as in torch. Trainers that
                share it give them in the same order, by which its state is kept as in torch: another one is refused.
                Tables may be among them, each with the optimizer that it was made with; see `OptimizerWithTables`. All
                other arguments are for the parameters.
            name: Required for a second optimizer of the same parameters, and to share one over anonymous objects.
                Without it, one for some parameters of a module is another than that for all of them. Of several owners
                that have one of the name, the first counts.
            reads: `consistent`: no forward sees half a step, and open passes keep the values that they began with.
                `inconsistent`: steps write in place (Hogwild).
            non_finite: With `refuse`, a step raises if a gradient holds NaN or infinity, on any owner or here, and
                changes nothing. With `apply`, it is applied.
            policy: When gradients count: `Async`, `Sync`, `BoundedStaleness` or `Quorum`. None for the policy that the
                optimizer has, or for steps that are applied at once. All parameters have to be on owners, and tables
                have to have the same policy.
            replace: Whether it takes the place of one of the same name that was made with another class or other
                options, for all trainers: their handles become stale. With the same it changes nothing: the call
                attaches, and moments and version stay. Another policy is set with `set_policy`.
            options: Keyword arguments of the class, such as `lr`.

        Raises:
            NameConflictError: An optimizer for these parameters exists with another class, other options or another
                policy.
            InvalidArgumentError: The class refuses the options, or there are no parameters; or an argument would hold
                for nothing, because there are only tables, or the optimizer is asked for by its name.
            UnknownNameError: It is asked for by its name, and there is none, or some of its owners are not those of
                this client.
            SessionLostError: One of several owners has an older state than the others know of; raised once.
            PsError: An owner failed; the parts that other owners have made stay there if they have names.
        """
        check_text("name", name)
        check_flag("replace", replace)
        own: Any = cls  # checked to be there where there are parameters
        make = partial(self._makers.optimizer, own, options=options, name=name, reads=reads)
        make = partial(make, non_finite=non_finite, policy=policy, replace=replace)
        other = {"name": name, "reads": reads != "consistent", "non_finite": non_finite != "apply", "replace": replace}
        given = [*options, *(each for each, is_given in other.items() if is_given)]
        if parameters is None:
            _check_by_name("optimizer", name, cls, given)
            return Pending.run(self._loop, self._found(self._makers.find_optimizer, name, policy))
        return self._tables.optimizer(parameters, make, cls, policy, given)

    def local_steps(
        self,
        replica: Replica | Replicas,
        inner: optim.Optimizer,
        method: local_steps.LocalTraining,
        *,
        name: str = "",
        non_finite: NonFinite = "apply",
        policy: Policy | None = local_steps.ALL,
    ) -> Pending[local_steps.LocalSteps]:
        """Trains a replica with an optimizer of this process, and combines what trainers have changed on the owner.

        It makes the optimizer on the owner that takes their differences, or attaches to it, as `optimizer` does.

        Args:
            replica: The replica; or several, made by `replicas`, on any number of owners.
            inner: The local optimizer, over parameters of the replica.
            method: `LocalSGD` or `DiLoCo`.
            name: Name of the optimizer on the owner; needed if the module has another one there.
            non_finite: With `refuse`, a difference with NaN or infinity is refused.
            policy: When differences count, as for gradients. By default in rounds of all trainers that use it. None for
                the policy that the optimizer has.

        Raises:
            InvalidArgumentError: This is no replica, the local optimizer steps no parameter of it, the policy sums, it
                was made with an overlap, its parameters were written to since the last pull, for example by
                `load_state_dict`, or two of several replicas are of the same module.
            NameConflictError: The optimizer on the owner exists with other options or another policy.
        """
        local_steps.check(replica, inner, method, policy)
        parameters = [each for source in replica.sources for each in source.parameters()]
        made = self.optimizer(optim.SGD, parameters, name=name, non_finite=non_finite, policy=policy, **method.options)

        async def begin() -> local_steps.LocalSteps:
            return local_steps.LocalSteps(replica, inner, await made, method.every)

        return Pending.run(self._loop, begin())

    def scheduler(
        self,
        cls: type[lr_scheduler.LRScheduler] | str | None = None,
        optimizer: DistributedOptimizer | OptimizerWithTables | None = None,
        *args: Any,
        name: str = "",
        replace: bool = False,
        **kwargs: Any,
    ) -> Pending[Any]:
        """Makes a learning-rate scheduler for each part of an optimizer, or attaches to an existing one.

        `ps.scheduler(name="net.optimizer.StepLR")` gives one that exists, with its parts on all owners of this client,
        whatever it was made with.

        Args:
            cls: A class of `torch.optim.lr_scheduler`; None, without an optimizer, for the scheduler of that name.
            optimizer: The optimizer whose learning rates it sets. Over tables, each gets a scheduler of its own: see
                `SchedulerWithTables`.
            args: Arguments of the class after the optimizer.
            name: Required for a second scheduler of the same class.
            replace: Whether it takes the place of one of the same name that was made with other arguments. With the
                same it changes nothing: the call attaches.
            kwargs: Keyword arguments of the class.

        Raises:
            InvalidArgumentError: The optimizer has no part on an owner, or the class refuses the arguments.
            NameConflictError: A scheduler of that name exists with another class or other arguments.
            UnknownNameError: It is asked for by its name, and there is none, or some of its owners are not those of
                this client.
        """
        check_text("name", name)
        check_flag("replace", replace)
        if optimizer is None or cls is None:
            _check_by_name("scheduler", name, cls or optimizer, [*kwargs, *(["replace"] if replace else [])])
            return Pending.run(self._loop, self._found_scheduler(name))
        make = partial(self._makers.scheduler, cls, args=args, kwargs=kwargs, replace=replace)
        if not isinstance(optimizer, OptimizerWithTables):
            return Pending.run(self._loop, make(optimizer, name=name))
        make_local = partial(self._makers.local_scheduler, cls, args=args, kwargs=kwargs)
        return Pending.run(
            self._loop, schedules.create(optimizer.parameters, optimizer.tables, make, make_local, name, self._loop)
        )

    async def _found(self, find: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        return await find(await self._sessions.all_of(self._sessions.names), *args)

    async def _found_scheduler(self, name: str) -> DistributedScheduler:
        made: DistributedScheduler = self._makers.schedule(await self._found(self._makers.find_scheduler, name), None)
        return made


def _check_by_name(what: str, name: str, cls: object, given: Iterable[str]) -> None:
    """Raises `InvalidArgumentError` if what is there is not asked for by its name alone."""
    if cls is not None or not name:
        before = "parameters" if what == "optimizer" else "optimizer"
        raise InvalidArgumentError(
            f"{what}() takes the class and the {before} of a new {what}, or the name of one that exists and neither of "
            f"both: ps.{what}(name=…)"
        )
    if given := [each for each in given if each != "name"]:
        raise InvalidArgumentError(
            f"ps.{what}(name={name!r}) gives the {what} as it is, and takes no {', '.join(given)}"
        )
