"""Makes a distributed optimizer: one part on each owner of its parameters, and one for local parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from torch import optim

from ps_wire.codec.names import name_of
from ps_wire.codec.payload import PayloadWriter
from ps_wire.codec.values import Encoder
from ps_wire.errors import InvalidArgumentError
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.frames_pb2 import Request
from trainer_client.handles.handles import RemoteObject, handle_from
from trainer_client.optimizers.layout import split_groups
from trainer_client.optimizers.optimizer import DistributedOptimizer
from trainer_client.optimizers.parts import LocalOptimizer, RemoteOptimizer
from trainer_client.optimizers.results import all_of

if TYPE_CHECKING:
    from trainer_client.handles.references import RRef
    from trainer_client.pending import Pending
    from trainer_client.session.session import Session

Reads = Literal["consistent", "inconsistent"]
NonFinite = Literal["apply", "refuse"]

_READS = {"consistent": pb.READS_CONSISTENT, "inconsistent": pb.READS_INCONSISTENT}
_NON_FINITE = {"apply": pb.NON_FINITE_APPLY, "refuse": pb.NON_FINITE_REFUSE}


async def create(
    cls: type[optim.Optimizer] | str,
    parameters: Iterable[Any],
    options: Mapping[str, Any],
    name: str,
    reads: Reads,
    non_finite: NonFinite,
) -> DistributedOptimizer:
    """Makes the parts of an optimizer on the owners of its parameters; arguments as for `Client.optimizer`.

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
            raise InvalidArgumentError("with local parameters, give the optimizer's class instead of its name")
        local = LocalOptimizer(cls, local_groups, options, non_finite == "refuse")
    making = {
        session.owner: _create_remote(session, cls, groups, options, name, reads, non_finite)
        for session, groups in by_session.items()
    }
    made = await all_of(making)
    remotes = {owner: RemoteOptimizer(handle) for owner, handle in made.items()}
    return DistributedOptimizer(remotes, local, layout, non_finite == "refuse")


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

    return session.submit(Request(optimizer=request), payload, finish)
