"""Whether an owner of an optimizer over several has come back with an older state than the others know of.

Its data directory was put back to an earlier copy, or its machine has crashed, and the other owners went on. They know
how far it had come: without rounds from what trainers tell with their steps, and else by the numbers of decisions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ps_wire.errors import SessionLostError
from ps_wire.v1 import operations_pb2 as pb
from trainer_client.optimizers.results import all_of

if TYPE_CHECKING:
    from trainer_client.optimizers.parts import RemoteOptimizer
    from trainer_client.optimizers.rounds import Rounds

Parts = Mapping[str, pb.PartState]
"""How far the parts of an optimizer have come, by owner."""


class _Found(NamedTuple):
    """An owner that has gone back from a version to another one, and one that knows of it."""

    owner: str
    witness: str
    before: int
    now: int


async def check(
    remotes: Mapping[str, RemoteOptimizer],
    rounds: Rounds | None,
    parts: Parts,
    again: Callable[[str], Awaitable[pb.PartState]],
    new: Collection[str],
) -> None:
    """Raises `SessionLostError` if an owner has gone back, once: all owners are told, and go on with what they have.
    Whose part is `new` has lost all, which its trainer knows. `again` asks an owner once more."""
    found = await _find(parts, again, has_rounds=rounds is not None)
    if found is None:
        return
    if rounds is not None:
        await rounds.go_on({owner: each.number for owner, each in parts.items()})
    message = pb.GoneBack(owner=found.owner, before=found.before, now=found.now)
    await all_of({owner: each.gone_back(message) for owner, each in remotes.items()})
    if found.owner not in new:
        raise SessionLostError(
            f"owner {found.owner!r} has gone back to version {found.now} of {remotes[found.owner].title.strip()}: it "
            f"had version {found.before} or a later one, as owner {found.witness!r} knows. Its data directory was put "
            "back to an earlier copy, or its machine has crashed, and the other owners still have their parts of those "
            "steps. Start all owners from copies of one moment; or ask for the objects again, and go on with what the "
            "owners have: this is said once"
        )


async def _find(parts: Parts, again: Callable[[str], Awaitable[pb.PartState]], has_rounds: bool) -> _Found | None:
    for witness, part in parts.items():
        for owner, number in part.known.items():
            if owner not in parts or parts[owner].number >= number:
                continue
            now = await again(owner)  # others may have stepped between the two answers
            if now.number < number:
                # Rounds give all owners the same version.
                return _Found(owner, witness, part.version if has_rounds else number, now.version)
    return None
