"""Makes a distributed optimizer: one part on each owner of its parameters, and one for local parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from torch import optim

from ps_wire import policies
from ps_wire.codec.names import name_of
from ps_wire.codec.payload import PayloadWriter
from ps_wire.codec.values import Encoder
from ps_wire.errors import InvalidArgumentError
from ps_wire.runtime.noop import noop
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.frames_pb2 import Reply, Request
from trainer_client.handles.handles import RemoteObject, handle_from
from trainer_client.optimizers.layout import split_groups
from trainer_client.optimizers.made import ON_OWNERS_ONLY, Made, compare, part_of, rounds_of
from trainer_client.optimizers.optimizer import DistributedOptimizer
from trainer_client.optimizers.parts import LocalOptimizer, RemoteOptimizer
from trainer_client.optimizers.results import all_of
from trainer_client.replicas.exchange import READS, Reads

if TYPE_CHECKING:
    from ps_wire.policies import Policy
    from trainer_client.handles.references import RRef
    from trainer_client.pending import Pending
    from trainer_client.session.session import Session

NonFinite = Literal["apply", "refuse"]

_NON_FINITE = {"apply": pb.NON_FINITE_APPLY, "refuse": pb.NON_FINITE_REFUSE}


async def create(
    cls: type[optim.Optimizer] | str,
    parameters: Iterable[Any],
    options: Mapping[str, Any],
    name: str,
    reads: Reads,
    non_finite: NonFinite,
    policy: Policy | None = None,
    replace: bool = False,
    joins: bool = True,
) -> DistributedOptimizer:
    """Makes the parts of an optimizer on the owners of its parameters; arguments as for `Client.optimizer`. With
    `replace`, parts of an optimizer of that name that was made with something else are replaced, on all owners. Without
    `joins`, this trainer takes part in the rounds of a policy with its first step, and not from now on."""
    # In lists, because what has no hash is refused, too.
    if reads not in list(READS) or non_finite not in list(_NON_FINITE):
        raise InvalidArgumentError(f"reads is one of {list(READS)} and non_finite one of {list(_NON_FINITE)}")
    if policy is not None:
        policies.check(policy)
    parameters = list(parameters)
    layout, by_session, local_groups = split_groups(parameters)
    local = None
    if local_groups:
        if isinstance(cls, str):
            raise InvalidArgumentError("with local parameters, give the optimizer's class instead of its name")
        local = LocalOptimizer(cls, local_groups, options, non_finite == "refuse")
    if policy is not None and (local is not None or not by_session):
        raise InvalidArgumentError(ON_OWNERS_ONLY)
    wanted = pb.OptimizerRequest(name=name, reads=READS[reads], non_finite=_NON_FINITE[non_finite], replace=replace)
    wanted.joins_with_step = not joins
    if by_session:  # a class for parameters of this process alone needs no name
        wanted.class_name = name_of(cls)
    if len(by_session) > 1:
        wanted.owners.extend(sorted(session.owner for session in by_session))
        wanted.layout.groups.extend(pb.ParameterDigests(parameters=each) for each in layout.digests)

    def make(sessions: Iterable[Session]) -> dict[str, Pending[Made]]:
        return {each.owner: _create_remote(each, wanted, by_session[each], options, policy) for each in sessions}

    made: dict[str, Made] = await all_of(make(by_session))
    kept = [each.handle for each in made.values() if not each.is_new and each.handle.name]
    if replace and 0 < len(kept) < len(made):
        # What distinguishes it from the former one was for some owners only. All of it is replaced, because rounds over
        # several owners begin together.
        await all_of({each.owner: _delete(each) for each in kept})
        made |= await all_of(make([each.session for each in kept]))
    if any(each.handle.owner != owner for owner, each in made.items()):
        # Parameters have moved meanwhile. Where they are now, there is the optimizer.
        return await create(cls, parameters, options, name, reads, non_finite, policy, replace, joins)
    remotes = {owner: RemoteOptimizer(each.handle) for owner, each in made.items()}
    rounds = rounds_of(made, remotes, local)
    await compare(made, make, remotes, rounds)
    optimizer = DistributedOptimizer(remotes, local, layout, non_finite == "refuse", rounds)
    optimizer.policy = policy
    return optimizer


def _delete(handle: RemoteObject) -> Pending[None]:
    return handle.session.submit(Request(delete=pb.DeleteRequest(name=handle.name)), None, noop)


def _create_remote(
    session: Session,
    wanted: pb.OptimizerRequest,
    groups: Sequence[tuple[Sequence[RRef], Mapping[str, Any]]],
    options: Mapping[str, Any],
    policy: Policy | None,
) -> Pending[Made]:
    """Asks an owner for its part. `wanted` has what all owners get, and tensors of options go with each request."""
    payload = PayloadWriter()
    encoder = Encoder(payload)
    request = pb.OptimizerRequest()
    request.CopyFrom(wanted)
    encoder.encode_into(request.options, dict(sorted(options.items())))
    if policy is not None:
        encoder.encode_into(request.policy, policies.to_plain(policy))
    for members, own in groups:
        group = request.groups.add(parameters=[member.ref.to_message() for member in members])
        encoder.encode_into(group.options, dict(sorted(own.items())))

    # It keeps the handles alive until the part is made.
    return session.submit(Request(optimizer=request), payload, partial(_read, session, groups))


def _read(session: Session, held: object, reply: Reply, _: object) -> Made:
    return part_of(handle_from(session, reply.optimizer.object), reply)
