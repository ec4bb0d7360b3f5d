"""The parts of an optimizer as owners have made or found them, before they are one optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from ps_wire.errors import InvalidArgumentError, NameConflictError
from trainer_client.optimizers import rollback_check
from trainer_client.optimizers.rounds import Rounds

if TYPE_CHECKING:
    from ps_wire.v1 import operations_pb2 as pb
    from ps_wire.v1.frames_pb2 import Reply
    from trainer_client.handles.handles import RemoteObject
    from trainer_client.optimizers.parts import LocalOptimizer, RemoteOptimizer
    from trainer_client.pending import Pending
    from trainer_client.session.session import Session


class Made(NamedTuple):
    """The part of an optimizer that an owner has made or found. Its rounds are over `owners`, if there are several. The
    first decides, and has the epoch of this trainer's join. `part` says how far it has come, if the owner has a log."""

    handle: RemoteObject
    owners: tuple[str, ...]
    epoch: int
    is_new: bool
    part: pb.PartState | None


ON_OWNERS_ONLY: Final = (
    "an optimizer with a policy has all of its parameters on owners, and none here: leave out the tensors of this "
    "process, and step them with an optimizer of torch"
)


def rounds_of(
    made: Mapping[str, Made], remotes: Mapping[str, RemoteOptimizer], local: LocalOptimizer | None
) -> Rounds | None:
    """The rounds over several owners; None if there are none."""
    over = {each.owners for each in made.values()}
    if over <= {()}:
        return None
    if () in over and len(over) == 2:
        return None  # a trainer has begun to give it its first policy; the next step goes on with that
    if len(over) > 1:
        raise NameConflictError(
            "these owners have optimizers with policies over other owners; give this one another name"
        )
    if local is not None:
        raise InvalidArgumentError(f"this optimizer was made with a policy: {ON_OWNERS_ONLY}")
    (owners,) = over
    first = made[owners[0]]
    return Rounds({owner: remotes[owner] for owner in owners}, first.epoch, first.handle.session.loop)


async def compare(
    made: Mapping[str, Made],
    make: Callable[[Iterable[Session]], dict[str, Pending[Made]]],
    remotes: Mapping[str, RemoteOptimizer],
    rounds: Rounds | None,
) -> None:
    """Compares how far several owners with logs have come, as `rollback_check.check`."""
    parts = {owner: each.part for owner, each in made.items() if each.part is not None}
    if not 1 < len(parts) == len(made):
        return

    async def again(owner: str) -> pb.PartState:
        found = (await make([made[owner].handle.session])[owner]).part
        return parts[owner] if found is None else found

    await rollback_check.check(remotes, rounds, parts, again, [owner for owner, each in made.items() if each.is_new])
    versions = {owner: each.version for owner, each in parts.items()}
    for remote in remotes.values():
        remote.versions = versions


def part_of(handle: RemoteObject, reply: Reply) -> Made:
    """The part in an answer, to which there is a handle."""
    made = reply.optimizer
    part = made.part if made.HasField("part") else None
    return Made(handle, tuple(made.owners), made.epoch, made.created, part)
