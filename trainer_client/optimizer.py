"""Optimizers: one per owner, shared by all trainers, and one for the parameters that are local."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import optim

from ps_wire.errors import InvalidArgumentError, NonFiniteGradientError
from ps_wire.names import name_of
from ps_wire.payload import PayloadWriter
from ps_wire.tryout import Tryout
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.frames_pb2 import Request
from ps_wire.values import Encoder
from trainer_client import handles
from trainer_client.context import Context
from trainer_client.graph import borrowed_grads, reservations
from trainer_client.handles import RemoteObject, handle_from
from trainer_client.layout import Layout, split_groups
from trainer_client.pending import Pending
from trainer_client.references import RRef
from trainer_client.requests import nothing, submit
from trainer_client.session import Session

Reads = Literal["consistent", "inconsistent"]
NonFinite = Literal["apply", "refuse"]

_READS = {"consistent": pb.READS_CONSISTENT, "inconsistent": pb.READS_INCONSISTENT}
_NON_FINITE = {"apply": pb.NON_FINITE_APPLY, "refuse": pb.NON_FINITE_REFUSE}


class RemoteOptimizer:
    """The part of an optimizer that runs on one owner.

    Args:
        handle: Of the optimizer there.
    """

    def __init__(self, handle: RemoteObject) -> None:
        self.handle = handle
        self.owner = handle.owner

    def step(self, context: Context) -> Pending[int]:
        request = Request(step=pb.StepRequest(optimizer=self.handle.ref.to_message(), context=context.id.to_message()))
        return submit(self.handle.session, request, None, lambda reply, _: int(reply.step.version))

    def set_options(self, group: int | None, options: Mapping[str, Any]) -> Pending[None]:
        payload = PayloadWriter()
        request = pb.SetOptionsRequest(optimizer=self.handle.ref.to_message(), group=group)
        Encoder(payload).encode_into(request.options, dict(options))
        return submit(self.handle.session, Request(set_options=request), payload, nothing)

    def state_dict(self) -> Pending[dict[str, Any]]:
        return handles.state_dict(self.handle)

    def load_state_dict(self, state: Mapping[str, Any]) -> Pending[Any]:
        return handles.load_state_dict(self.handle, state)


class LocalOptimizer:
    """The part of an optimizer that runs here, on a context's gradients instead of on `.grad`.

    Args:
        cls: Its class.
        groups: Its parameter groups.
        options: The constructor's keyword arguments.
        refuse_non_finite: Whether NaN and infinity are refused.

    Raises:
        InvalidArgumentError: The class refuses the options.
    """

    def __init__(
        self,
        cls: type[optim.Optimizer],
        groups: Sequence[dict[str, Any]],
        options: Mapping[str, Any],
        refuse_non_finite: bool,
    ) -> None:
        try:
            self.optimizer = cls(groups, **options)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"{cls.__name__} refuses its arguments: {error}") from None
        self._tryout = Tryout(self.optimizer, options)
        self._refuse = refuse_non_finite

    def check(self, context: Context) -> None:
        """Looks at the context's gradients of these parameters.

        Raises:
            NonFiniteGradientError: One holds NaN or infinity and was to be refused.
        """
        if self._refuse and not all(bool(torch.isfinite(gradient).all()) for _, gradient in self._found(context)):
            raise NonFiniteGradientError("the gradient of a local parameter holds NaN or infinity; nothing was applied")

    def step(self, context: Context) -> None:
        """Applies the context's gradients of these parameters."""
        found = self._found(context)
        with reservations.of(self._parameters), borrowed_grads(self._parameters):
            for parameter, gradient in found:
                parameter.grad = gradient
            self.optimizer.step()

    def check_options(self, places: Iterable[int], options: Mapping[str, Any]) -> None:
        """Raises `InvalidArgumentError` when options of some groups cannot be changed."""
        self._tryout.check_options([self.optimizer.param_groups[place] for place in places], options)

    def state_dict(self) -> dict[str, Any]:
        """Its state, as a copy."""
        return copy.deepcopy(self.optimizer.state_dict())

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raises `InvalidArgumentError` when a state does not fit."""
        self._tryout.check_state(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over a state that was checked."""
        self.optimizer.load_state_dict(copy.deepcopy(dict(state)))

    @property
    def _parameters(self) -> list[torch.Tensor]:
        return [each for group in self.optimizer.param_groups for each in group["params"]]

    def _found(self, context: Context) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(each, grad) for each in self._parameters if (grad := context.gradient(each)) is not None]


class DistributedOptimizer:
    """One optimizer over parameters on any number of owners and in this process.

    On each owner it is one `torch.optim` optimizer, shared by all trainers; its state lives where the parameters live.
    Made by `Client.optimizer`.

    Attributes:
        remotes: Its parts on owners, by the owner's name.
        local: Its part in this process, if it has local parameters.
    """

    def __init__(self, remotes: dict[str, RemoteOptimizer], local: LocalOptimizer | None, layout: Layout) -> None:
        self.remotes = remotes
        self.local = local
        self._layout = layout
        sessions = [part.handle.session for part in remotes.values()]
        self._loop = sessions[0].loop if sessions else asyncio.get_running_loop()

    def step(self, context: Context) -> Pending[dict[str, int]]:
        """Applies the gradients of a context: on each owner all or none, and then to the local parameters.

        Returns:
            The version of the optimizer on each owner after the step.

        Raises:
            ContextEndedError: The context has ended.
            NonFiniteGradientError: An owner refused NaN or infinity; it changed nothing. When a local gradient is
                refused, nothing is changed anywhere.
        """
        return Pending.run(self._loop, self._step(context, self._begin(context)))

    def apply(self, context: Context) -> dict[str, int]:
        """Like `step`, in this thread, which must not be that of the client's event loop.

        Raises:
            As `step`.
        """
        versions = _all_here(self._begin(context))
        if self.local is not None:
            self.local.step(context)
        return versions

    def _begin(self, context: Context) -> dict[str, Pending[int]]:
        context.check(*(part.handle.session for part in self.remotes.values()))
        if self.local is not None:
            self.local.check(context)
        return {name: part.step(context) for name, part in self.remotes.items()}

    async def _step(self, context: Context, steps: dict[str, Pending[int]]) -> dict[str, int]:
        versions = await _all(steps)
        if self.local is not None:
            await asyncio.to_thread(self.local.step, context)
        return versions

    def set_options(self, group: int | None = None, **options: Any) -> Pending[None]:
        """Changes options such as `lr` on every owner and here.

        Args:
            group: Which parameter group, as they were given; all if None.
            options: The options and their new values.

        Raises:
            InvalidArgumentError: There is no such group or option.
        """
        return Pending.run(self._loop, self._set_options(group, options))

    async def _set_options(self, group: int | None, options: dict[str, Any]) -> None:
        places = self._layout.places(group)
        if self.local is not None:
            self.local.check_options([place for name, place in places if name == Layout.LOCAL], options)
        await _all(
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
        """The state of all parts together, as the `state_dict` of one torch optimizer over the same parameters."""
        return Pending.run(self._loop, self._state_dict())

    async def _state_dict(self) -> dict[str, Any]:
        parts = await _all({name: part.state_dict() for name, part in self.remotes.items()})
        if self.local is not None:
            parts[Layout.LOCAL] = self.local.state_dict()
        return self._layout.merged(parts)

    def load_state_dict(self, state: Mapping[str, Any]) -> Pending[None]:
        """Takes over the state of a torch optimizer, or of another of these, over the same parameters.

        Raises:
            InvalidArgumentError: It does not fit; nothing was changed on any owner or here.
        """
        return Pending.run(self._loop, self._load_state_dict(state))

    async def _load_state_dict(self, state: Mapping[str, Any]) -> None:
        parts = self._layout.parted(state)
        if self.local is not None:
            self.local.check_state(parts[Layout.LOCAL])
        before = await _all({name: part.state_dict() for name, part in self.remotes.items()})
        try:
            await _all({name: part.load_state_dict(parts[name]) for name, part in self.remotes.items()})
        except InvalidArgumentError:
            # Some parts may have taken it.
            await _all({name: part.load_state_dict(before[name]) for name, part in self.remotes.items()})
            raise
        if self.local is not None:
            self.local.load_state_dict(parts[Layout.LOCAL])

    def __repr__(self) -> str:
        parts = [*self.remotes, *(["this process"] if self.local else [])]
        return f"<DistributedOptimizer on {', '.join(parts)}>"


async def create(
    cls: type[optim.Optimizer] | str,
    parameters: Iterable[Any],
    options: Mapping[str, Any],
    name: str,
    reads: Reads,
    non_finite: NonFinite,
) -> DistributedOptimizer:
    """Makes the parts of an optimizer where its parameters are.

    Raises:
        InvalidArgumentError: There are no parameters, or an option does not fit.
        NameConflictError: An owner has another optimizer under that name.
    """
    if reads not in _READS or non_finite not in _NON_FINITE:
        raise InvalidArgumentError(f"reads is one of {list(_READS)} and non_finite one of {list(_NON_FINITE)}")
    layout, by_session, local_groups = split_groups(parameters)
    local = None
    if local_groups:
        if isinstance(cls, str):
            raise InvalidArgumentError("local parameters need the optimizer's class itself, not its name")
        local = LocalOptimizer(cls, local_groups, options, non_finite == "refuse")
    making = {
        session.owner: _create_remote(session, cls, groups, options, name, reads, non_finite)
        for session, groups in by_session.items()
    }
    made = await _all(making)
    return DistributedOptimizer({owner: RemoteOptimizer(handle) for owner, handle in made.items()}, local, layout)


def _create_remote(
    session: Session,
    cls: type[optim.Optimizer] | str,
    groups: Sequence[tuple[Sequence[RRef], Mapping[str, Any]]],
    options: Mapping[str, Any],
    name: str,
    reads: Reads,
    non_finite: NonFinite,
) -> Pending[RemoteObject]:
    payload = PayloadWriter()
    encoder = Encoder(payload)
    request = pb.OptimizerRequest(
        class_name=name_of(cls), name=name, reads=_READS[reads], non_finite=_NON_FINITE[non_finite]
    )
    encoder.encode_into(request.options, dict(sorted(options.items())))
    for members, own in groups:
        group = request.groups.add(parameters=[member.ref.to_message() for member in members])
        encoder.encode_into(group.options, dict(sorted(own.items())))
    held = [groups]

    def finish(reply: Any, _: Any, __: Any = held) -> RemoteObject:
        return handle_from(session, reply.optimizer.object)

    return submit(session, Request(optimizer=request), payload, finish)


async def _all(pending: Mapping[str, Pending[Any]]) -> dict[str, Any]:
    """Waits for all of them, then gives the results or raises the first error."""
    results = await asyncio.gather(*pending.values(), return_exceptions=True)
    return _unless_one_raised(dict(zip(pending, results, strict=True)))


def _all_here(pending: Mapping[str, Pending[Any]]) -> dict[str, Any]:
    """The same, in a thread that waits."""
    results: dict[str, Any] = {}
    for name, each in pending.items():
        try:
            results[name] = each.wait()
        except Exception as error:
            results[name] = error
    return _unless_one_raised(results)


def _unless_one_raised(results: dict[str, Any]) -> dict[str, Any]:
    for result in results.values():
        if isinstance(result, BaseException):
            raise result
    return results
