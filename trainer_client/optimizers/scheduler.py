"""Learning-rate schedulers over several owners."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from torch.optim import Optimizer, lr_scheduler

from ps_wire.codec.names import name_of
from ps_wire.codec.payload import PayloadWriter
from ps_wire.codec.values import Encoder
from ps_wire.errors import InvalidArgumentError
from ps_wire.v1.frames_pb2 import Reply, Request
from ps_wire.v1.operations_pb2 import SchedulerRequest
from trainer_client.handles import states
from trainer_client.handles.handles import RemoteObject, handle_from
from trainer_client.handles.references import state_of
from trainer_client.pending import Pending

if TYPE_CHECKING:
    from trainer_client.optimizers.optimizer import DistributedOptimizer
    from trainer_client.optimizers.parts import RemoteOptimizer
    from trainer_client.session.session import Session

_NO_NAME: Final = "with local parameters, give the scheduler's class instead of its name"


class DistributedScheduler:
    """A learning-rate scheduler for each part of a `DistributedOptimizer`. Made by `Client.scheduler`.

    All trainers share it, like the optimizer: a `step` of one trainer counts for all.
    """

    def __init__(self, remotes: list[RemoteObject], local: lr_scheduler.LRScheduler | None) -> None:
        self.remotes = remotes
        self._local = local

    def step(self, *args: Any) -> Pending[list[float]]:
        """Takes one step of the schedule, on every owner and here.

        Args:
            args: Arguments of the scheduler's own `step`, such as the metric of `ReduceLROnPlateau`.

        Returns:
            The learning rates of the first part, one per parameter group.

        Raises:
            PsError: An owner failed; others may have taken the step.
        """
        loop = self.remotes[0].session.loop
        return Pending.run(loop, self._step([remote.call("step", *args) for remote in self.remotes], args))

    async def _step(self, steps: list[Pending[Any]], args: tuple[Any, ...]) -> list[float]:
        rates = await asyncio.gather(*steps)
        if self._local is not None:
            self._local.step(*args)
        return [float(rate) for rate in rates[0]]

    def get_last_lr(self) -> Pending[list[float]]:
        """The present learning rates of the first part, one per parameter group."""
        return self.remotes[0].call("get_last_lr")

    def state_dict(self) -> Pending[dict[str, Any]]:
        """The state of the scheduler, under torch's own keys."""
        return states.state_dict(self.remotes[0])

    def load_state_dict(self, state: Mapping[str, Any]) -> Pending[None]:
        """Loads a state into every part."""
        loop = self.remotes[0].session.loop
        return Pending.run(loop, self._load([states.load_state_dict(each, state) for each in self.remotes], state))

    async def _load(self, loads: list[Pending[Any]], state: Mapping[str, Any]) -> None:
        await asyncio.gather(*loads)
        if self._local is not None:
            self._local.load_state_dict(dict(state))

    def __ps_objects__(self) -> list[RemoteObject]:
        """The objects on owners that are its parts: see `named_parts`."""
        return self.remotes

    def __repr__(self) -> str:
        first = self.remotes[0]
        states = [(each.owner, state_of(each)) for each in self.remotes]
        parts = [f"{owner} ({state})" if state else owner for owner, state in states]
        what = f"{first.class_name} {first.name!r}" if first.name else first.class_name
        return f"<DistributedScheduler {what} on {', '.join([*parts, *(['this process'] if self._local else [])])}>"


async def create(
    cls: type[lr_scheduler.LRScheduler] | str,
    optimizer: DistributedOptimizer,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    name: str,
    replace: bool = False,
) -> DistributedScheduler:
    """Makes a scheduler for each part of an optimizer; arguments as for `Client.scheduler`."""
    remotes = getattr(optimizer, "remotes", None)
    if remotes is None:
        raise InvalidArgumentError(
            "a scheduler is for an optimizer that ps.optimizer(…) has made, or for the optimizer of a table, "
            f"table.optimizer, and not for {optimizer!r}"
        )
    if not remotes:
        raise InvalidArgumentError("this optimizer has only local parameters: use a scheduler of torch")
    if optimizer.local is not None and isinstance(cls, str):
        raise InvalidArgumentError(_NO_NAME)

    def ask(part: RemoteOptimizer) -> Pending[RemoteObject]:
        payload, session = PayloadWriter(), part.session
        encoder = Encoder(payload)
        request = SchedulerRequest(class_name=name_of(cls), optimizer=part.name, name=name, replace=replace)
        encoder.encode_into(request.args, args)
        encoder.encode_into(request.kwargs, dict(sorted(kwargs.items())))
        return session.submit(Request(scheduler=request), payload, partial(_made, session))

    async def ask_all() -> list[RemoteObject]:
        return await asyncio.gather(*map(ask, optimizer.remotes.values()))

    made = await optimizer.everywhere(ask_all)
    # Last, because its constructor sets learning rates.
    local = None if optimizer.local is None else create_local(cls, optimizer.local.optimizer, args, kwargs)
    return DistributedScheduler(list(made), local)


def _made(session: Session, reply: Reply, _: object) -> RemoteObject:
    return handle_from(session, reply.scheduler.object)


def create_local(
    cls: type[lr_scheduler.LRScheduler] | str, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> lr_scheduler.LRScheduler:
    """A scheduler of an optimizer of this process. Raises `InvalidArgumentError` if the class refuses the arguments."""
    if isinstance(cls, str):
        raise InvalidArgumentError(_NO_NAME)
    try:
        return cls(optimizer, *args, **kwargs)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{cls.__name__} refuses its arguments: {error}") from None
