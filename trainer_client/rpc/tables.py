"""Tables with rows on other owners, for the code that this process hosts."""

from __future__ import annotations

import asyncio
from functools import reduce
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_wire.errors import InvalidArgumentError, PsError, UnknownNameError
from ps_wire.tables.names import SHARD
from ps_wire.tables.routing import Routing
from ps_wire.v1.operations_pb2 import MembersRequest
from trainer_client.client.objects import attach_named
from trainer_client.contexts.current import current_context
from trainer_client.pending import DEFAULT, Pending
from trainer_client.tables.contents import TableContents
from trainer_client.tables.following import Follower
from trainer_client.tables.look_ups import look_up

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ps_wire.tables.queries import Asked, Described, Query
    from trainer_client.contexts.closing import Part
    from trainer_client.handles.handles import RemoteObject
    from trainer_client.handles.other_owners import OtherOwners


class SharedTable(TableContents):
    """A table that hosted code looks up in, as a `TableElsewhere`. Nobody steps it from here."""

    parts: Sequence[Part] = ()

    def __init__(
        self,
        full_name: str,
        others: OtherOwners,
        settings: Mapping[str, Any],
        routing: Routing,
        shards: Mapping[str, RemoteObject],
    ) -> None:
        super().__init__(settings, routing, shards)
        self._full_name: Final = full_name
        self._others: Final = others
        self.follower = Follower(lambda: self.routing, self.known_shards, self._adopt)

    async def _adopt(self, routing: Routing) -> None:
        for owner in routing.owners:
            if owner not in self.known_shards:
                self.known_shards[owner] = await attach_named(await self._others.reach(owner), self._full_name)
        self.shards, self.routing = {owner: self.known_shards[owner] for owner in routing.owners}, routing

    def look_up(
        self,
        make: Callable[[Described], Query[Any]],
        own: str,
        here: Callable[[Query[Any], Asked], torch.Tensor] | None,
    ) -> torch.Tensor:
        """As `TableElsewhere.look_up`. Waits for the other owners."""
        query = make(self)
        answers: dict[str, torch.Tensor] = {}
        if here is not None and own in query.asked:
            answers[own] = here(query, query.asked[own])
        rest = {owner: asked for owner, asked in query.asked.items() if owner not in answers}
        if rest:
            # The answers themselves are what the look-up at the others gives.
            parts: Query[Any] = query._replace(asked=rest, finish=_as_they_are)
            asked: Any = look_up(self._loop, [parts], DEFAULT, itemgetter(0)).wait()
            answers.update(zip(rest, asked, strict=True))
        with torch.set_grad_enabled(torch.is_grad_enabled() and current_context() is not None):
            return query.finish([answers[owner] for owner in query.asked])


def _as_they_are(answers: list[torch.Tensor]) -> Any:
    return answers


def find(loop: asyncio.AbstractEventLoop, others: OtherOwners, name: str, owners: Sequence[str]) -> SharedTable:
    """A table by its name with its namespace. Some of these owners have rows of it, or had some. Waits for them. Raises
    `UnknownNameError` if none has it, and the error of one that cannot be reached, if the others have none."""
    return Pending.run(loop, _find(others, name, owners)).wait()


async def _find(others: OtherOwners, name: str, owners: Sequence[str]) -> SharedTable:
    found = await _first(others, name, owners)
    described = await _described(found)
    routing, shards = Routing.from_plain(described["routing"]), {found.owner: found}
    # An owner may know of others that the ones before had not heard of.
    while left := [owner for owner in routing.owners if owner not in shards]:
        for owner in left:
            shards[owner] = await attach_named(await others.reach(owner), name)
        told = [await _described(shards[owner]) for owner in left]
        routing = reduce(Routing.merged, (Routing.from_plain(each["routing"]) for each in told), routing)
    return SharedTable(name, others, described["settings"], routing, shards)


def _described(shard: RemoteObject) -> Pending[Any]:
    """Asks what the table is, beside whatever pass there is, and without a seed of the client."""
    with torch.no_grad():
        return shard.options(seed=0).call("describe")


async def _first(others: OtherOwners, name: str, owners: Sequence[str]) -> RemoteObject:
    """The rows of the first of some owners that has the table, or of another member of the group."""
    failed: PsError = UnknownNameError(
        f"the table {name!r}, in which hosted code looks up, is on no owner of this group: it was deleted. Make it "
        "again, or make the module again with another table"
    )
    members = [] if others.directory is None else await others.members(others.directory, MembersRequest())
    for owner in dict.fromkeys([*owners, *(each.name for each in members)]):
        try:
            found = await attach_named(await others.reach(owner), name)
        except UnknownNameError:
            continue
        except PsError as error:
            failed = error
            continue
        if found.class_name != SHARD:
            raise InvalidArgumentError(f"{name!r} on owner {owner!r}, in which hosted code looks up, is no table")
        return found
    raise failed
