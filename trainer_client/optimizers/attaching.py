"""Finds optimizers and schedulers that exist by their names, with their parts on all owners."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from ps_wire import policies
from ps_wire.codec.payload import PayloadWriter
from ps_wire.codec.values import Encoder
from ps_wire.errors import InvalidArgumentError, UnknownNameError
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.frames_pb2 import Reply, Request
from trainer_client.handles.handles import RemoteObject, handle_from
from trainer_client.optimizers.layout import Layout
from trainer_client.optimizers.made import Made, compare, part_of, rounds_of
from trainer_client.optimizers.optimizer import DistributedOptimizer
from trainer_client.optimizers.parts import RemoteOptimizer
from trainer_client.optimizers.results import all_of

if TYPE_CHECKING:
    from ps_wire.policies import Policy
    from trainer_client.pending import Pending
    from trainer_client.session.session import Session

Groups = tuple[tuple[int, ...], ...]
"""The digests of parameters, by parameter group."""


_OPTIMIZER: Final = "ps.optimizer"
_SCHEDULER: Final = "ps.scheduler"


class _Part(NamedTuple):
    """What an owner has: an object, and the layout of the optimizer that it is a part of, or belongs to."""

    handle: RemoteObject
    layout: pb.OptimizerLayout

    @property
    def groups(self) -> Groups:
        """The parameters on all owners."""
        return _read(self.layout.groups or self.layout.own)

    @property
    def kind(self) -> str:
        """The method of the client that gives it; empty for other objects."""
        return "" if not self.layout.own else _SCHEDULER if self.layout.scheduler else _OPTIMIZER


async def optimizer(sessions: Sequence[Session], name: str, policy: Policy | None) -> DistributedOptimizer:
    """The optimizer of that name, as it is; arguments and errors as for `Client.optimizer`."""
    if policy is not None:
        policies.check(policy)
    parts = await _parts(sessions, name, is_scheduler=False)

    def make(among: Iterable[Session]) -> dict[str, Pending[Made]]:
        chosen = set(among)
        return {owner: _ask(each.handle, policy) for owner, each in parts.items() if each.handle.session in chosen}

    made: dict[str, Made] = await all_of(make([each.handle.session for each in parts.values()]))
    remotes = {owner: RemoteOptimizer(each.handle) for owner, each in made.items()}
    rounds = rounds_of(made, remotes, None)
    await compare(made, make, remotes, rounds)
    first = next(iter(parts.values()))
    refuses = first.layout.non_finite == pb.NON_FINITE_REFUSE
    found = DistributedOptimizer(remotes, None, _layout(first.groups, parts), refuses, rounds)
    found.policy = policy
    return found


async def scheduler(sessions: Sequence[Session], name: str) -> list[RemoteObject]:
    """The parts of the scheduler of that name, as it is; arguments and errors as for `Client.scheduler`."""
    return [each.handle for each in (await _parts(sessions, name, is_scheduler=True)).values()]


async def _parts(sessions: Sequence[Session], name: str, is_scheduler: bool) -> dict[str, _Part]:
    """The parts, by owner, of what is called so on the first owner that has it. Other owners have parts of that name,
    or if it was given none, some for the other parameters."""
    answers = await _asked(sessions, pb.AttachRequest(name=name))
    named = [each for each in answers if isinstance(each, _Part)]
    if not named:
        raise _first_error(answers)
    first = named[0]
    _check_kind(first, name, is_scheduler)
    found = [each for each in named if each.groups == first.groups and each.kind == first.kind]
    wanted = {each for group in first.groups for each in group}
    if not first.layout.is_named and wanted != _own(found[:1]):
        part = pb.OptimizerLayout(groups=first.layout.groups, scheduler=first.layout.scheduler)
        others = await _asked(sessions, pb.AttachRequest(part=part))
        found = [each for each in others if isinstance(each, _Part)]
    if missing := wanted - _own(found):
        raise UnknownNameError(
            f"{len(missing)} of the {len(wanted)} parameters of {name!r} are on owners that this client does not "
            f"reach; it has asked {', '.join(each.owner for each in sessions)}. Connect to all of its owners"
        )
    return {each.handle.owner: each for each in found}


async def _asked(sessions: Sequence[Session], request: pb.AttachRequest) -> list[_Part | BaseException]:
    """What owners answer, in their order."""

    def ask(session: Session) -> Pending[_Part]:
        return session.submit(Request(attach=request), None, partial(_attached, session))

    return await asyncio.gather(*map(ask, sessions), return_exceptions=True)


def _attached(session: Session, reply: Reply, _: object) -> _Part:
    return _Part(handle_from(session, reply.attach.object), reply.attach.layout)


def _first_error(answers: Iterable[_Part | BaseException]) -> BaseException:
    """An error that hides whether the name is there, or else the first."""
    errors = [each for each in answers if isinstance(each, BaseException)]
    return min(errors, key=lambda error: isinstance(error, UnknownNameError))


def _check_kind(found: _Part, name: str, is_scheduler: bool) -> None:
    if found.kind == (_SCHEDULER if is_scheduler else _OPTIMIZER):
        return
    remedy = f": {found.kind}(name={name!r}) gives it" if found.kind else ""
    wanted = "a learning-rate scheduler" if is_scheduler else "an optimizer"
    raise InvalidArgumentError(f"{name!r} is a {found.handle.class_name}, and not {wanted}{remedy}")


def _own(parts: Iterable[_Part]) -> set[int]:
    return {each for part in parts for group in part.layout.own for each in group.parameters}


def _ask(handle: RemoteObject, policy: Policy | None) -> Pending[Made]:
    """Asks an owner for its part, to use it from now on."""
    payload, request = PayloadWriter(), pb.OptimizerRequest(attach=handle.ref.to_message())
    if policy is not None:
        Encoder(payload).encode_into(request.policy, policies.to_plain(policy))
    return handle.session.submit(Request(optimizer=request), payload, partial(_read_part, handle.session, handle))


def _read_part(session: Session, held: object, reply: Reply, _: object) -> Made:
    return part_of(handle_from(session, reply.optimizer.object), reply)


def _layout(groups: Groups, parts: dict[str, _Part]) -> Layout:
    """The layout of an optimizer whose parts are on these owners."""
    owner_of = {digest: owner for owner, part in parts.items() for digest in _own([part])}
    layout, numbers = Layout(), Counter[str]()
    for group in groups:
        owners = [owner_of[each] for each in group]
        own = {owner: numbers[owner] for owner in dict.fromkeys(owners)}
        numbers.update(own.keys())
        layout.add_group(owners, own)
    return layout


def _read(groups: Iterable[pb.ParameterDigests]) -> Groups:
    return tuple(tuple(each.parameters) for each in groups)
