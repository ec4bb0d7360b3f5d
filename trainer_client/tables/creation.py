"""Makes tables on their owners, attaches to them, and removes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Protocol, cast

from ps_wire import policies
from ps_wire.compression.choice import Compress, choice_of
from ps_wire.compression.registry import check_suitable_for_rows
from ps_wire.errors import (
    InvalidArgumentError,
    NameConflictError,
    PermissionDeniedError,
    PsError,
    StaleHandleError,
    UnknownNameError,
)
from ps_wire.runtime.failures import Origin
from ps_wire.tables import names
from ps_wire.tables.routing import Routing
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import DeleteRequest
from trainer_client.handles.handles import RemoteObject
from trainer_client.pending import Pending
from trainer_client.tables.following import Follower, marks_of
from trainer_client.tables.no_optimizer import NoOptimizer
from trainer_client.tables.table import Table, delete_rows, split, undo
from trainer_client.tables.table_spec import TableSpec, are_owners, check_only_tables, check_policies, differences
from trainer_client.tables.together import OptimizerWithTables

if TYPE_CHECKING:
    from ps_wire.policies import Policy
    from trainer_client.optimizers.creation import NonFinite
    from trainer_client.optimizers.optimizer import DistributedOptimizer
    from trainer_client.session.session import Session


class Connected(Protocol):
    """The owners of a client: its `Sessions`. Tables for which no owners are named are made on those of `names`."""

    @property
    def by_owner(self) -> Mapping[str, Session]: ...
    @property
    def names(self) -> Sequence[str]: ...
    @property
    def in_group(self) -> bool: ...
    async def all_of(self, owners: Iterable[str]) -> list[Session]: ...


@dataclass(slots=True)
class Tables:
    """Makes tables. `create` and `attach` make and find objects; `make_optimizer` is `optimizers.creation.create`."""

    sessions: Connected
    create: Callable[[Session, str, Mapping[str, Any], bool], Pending[RemoteObject]]
    attach: Callable[[Session, str], Pending[RemoteObject]]
    make_optimizer: Callable[..., Any]
    loop: asyncio.AbstractEventLoop

    def table(self, wanted: TableSpec, compress: Compress) -> Pending[Table]:
        """Makes a table, or attaches to it; errors as for `Client.table`. Without `dim` none can be made, so what else
        is wanted has to be as the table has it, also with `replace`."""
        codecs = None if compress is None else choice_of(compress)
        if codecs is not None:
            for codec in codecs.codecs:
                check_suitable_for_rows(codec)
        if wanted.policy is not None:
            policies.check(wanted.policy)
        owners = self.sessions.names if wanted.owners is None else wanted.owners

        async def make() -> Table:
            if wanted.dim is None or (wanted.replace and await self._has_moved(owners, wanted)):
                table = await self._found(owners, wanted)
            elif wanted.owners is None and self.sessions.in_group:
                table = await self._agreed(owners, wanted)
            else:
                table = await self._made(owners, wanted)
            table.compress = codecs
            return table

        return Pending.run(self.loop, make())

    def delete(self, session: Session, name: str, handle: RemoteObject | None = None) -> Pending[None]:
        """Removes an object of any kind, which has to be that of a handle, if there is one; arguments and errors as for
        `Client.delete`."""
        request = Request(delete=DeleteRequest(name=name, handle=None if handle is None else handle.ref.to_message()))
        asked = session.submit(request, None, lambda reply, _: tuple(reply.delete.owners))
        deleting = Pending.run(self.loop, self._delete_rest(asked, name))
        deleting.origin = Origin(f"delete on owner {session.owner!r}")
        return deleting

    async def _delete_rest(self, asked: Pending[tuple[str, ...]], name: str) -> None:
        """Removes a table from all of its owners, if the first has answered that it is one, and has removed nothing."""
        owners = await asked
        if not owners:
            return
        try:
            sessions = await self.sessions.all_of(owners)
        except UnknownNameError as error:
            raise UnknownNameError(
                f"the table {name!r} has rows on {', '.join(owners)}, and was not deleted, because {error}"
            ) from None
        answers = await asyncio.gather(*(delete_rows(each, name) for each in sessions), return_exceptions=True)
        # An owner may have lost its rows, or somebody else has deleted the table at the same time.
        errors = [each for each in answers if isinstance(each, BaseException)]
        errors.sort(key=lambda error: isinstance(error, UnknownNameError))
        if errors and (not isinstance(errors[0], UnknownNameError) or len(errors) == len(sessions)):
            raise errors[0]
        # Owners from which all slots have moved still have the table, without rows.
        await self._clear(name, [each for each in self.sessions.by_owner.values() if each not in sessions])

    def optimizer(
        self,
        listed: Iterable[Any],
        make: Callable[..., Coroutine[Any, Any, Any]],
        cls: Any,
        policy: Policy | None,
        given: Iterable[str],
    ) -> Pending[Any]:
        """An optimizer over parameters and tables, or groups of parameters beside tables. `make` makes that of the
        `parameters`, its keyword argument. `given` are the names of its other arguments that the program has given,
        besides its class, which is None if there are only tables, and its policy."""
        if isinstance(listed, Table):
            raise InvalidArgumentError(
                f"give a list with {listed!r} in it, [table, *net.parameters()]; the rows of a table are stepped by "
                "the optimizer that it was made with, ps.table(…, optimizer=tc.tables.Adagrad(…))"
            )
        tables, rest = split(listed)
        if cls is None and (rest or not tables):
            raise InvalidArgumentError(
                "parameters need the class of an optimizer, such as torch.optim.SGD, and not None"
            )
        if not tables:
            return Pending.run(self.loop, make(parameters=rest))
        if rest:
            check_policies(tables, policy)
        else:
            check_only_tables(tables, cls, [*given, *(["policy"] if policy is not None else [])])

        async def made() -> OptimizerWithTables:
            own = await make(parameters=rest) if rest else None
            return OptimizerWithTables(self.loop, own, {each.name: each.optimizer for each in tables})

        return Pending.run(self.loop, made())

    async def _agreed(self, owners: Sequence[str], wanted: TableSpec) -> Table:
        """A table on the owners that it has already; on these, if there is none. It is made on the first of them before
        the others, so that of several trainers, which know different owners, the first one decides."""
        existing = await self._owners_of(owners, wanted)
        try:
            return await self._made(existing or owners, wanted, before=0 if existing else 1)
        except NameConflictError:
            decided = await self._owners_of(owners, wanted)
            if decided == existing or decided is None:
                raise
            return await self._made(decided, wanted)

    async def _owners_of(self, owners: Iterable[str], wanted: TableSpec) -> list[str] | None:
        """The owners of the table of that name; None if there is none, or it is one to replace."""
        there = [each for each in await self.sessions.all_of(owners) if each.state == "connected"]
        found = await asyncio.gather(*(self.attach(each, wanted.name) for each in there), return_exceptions=True)
        for each in found:
            if isinstance(each, RemoteObject) and each.class_name == names.SHARD:
                described = await each.call("describe")
                its = sorted(described["routing"]["owners"])
                is_other = {**described["settings"], "owners": its} != wanted.settings(its)
                return None if wanted.replace and is_other else its
        return None

    async def _made(self, owners: Sequence[str], wanted: TableSpec, before: int = 0) -> Table:
        """A table on these owners; `before` is on how many of them it is made before the others."""
        sessions = await self.sessions.all_of(owners)
        settings = wanted.settings(sorted(owners))
        Routing.even(settings["owners"])
        first = [await self._shard(each, settings, wanted.replace) for each in sessions[:before]]
        rest = (self._shard(each, settings, wanted.replace) for each in sessions[before:])
        made = [*first, *await asyncio.gather(*rest, return_exceptions=True)]
        for each in made:
            if isinstance(each, BaseException):
                await undo(made)
                if isinstance(each, NameConflictError) and await self._has_moved(owners, wanted):
                    return await self._found(owners, wanted)
                raise each
        shards = {each.owner: each for each in made if isinstance(each, RemoteObject)}
        if wanted.replace:
            others = [each for each in self.sessions.by_owner.values() if each not in sessions]
            await self._clear(wanted.name, others)
        return await self._open(shards, wanted.policy, wanted.non_finite or "refuse", wanted.replace)

    async def _has_moved(self, owners: Sequence[str], wanted: TableSpec) -> bool:
        """Whether the table that is wanted exists on other owners than it was made on, because its slots have moved."""
        for session in await self.sessions.all_of(owners):
            with suppress(UnknownNameError):
                found = await self.attach(session, wanted.name)
                if found.class_name == names.SHARD:
                    described = await found.call("describe")
                    is_same = are_owners(sorted(owners), described) or wanted.owners is None
                    own = {**described["settings"], "owners": []}
                    return "moves" in described["routing"] and is_same and own == wanted.settings([])
        return False

    async def _clear(self, name: str, sessions: Iterable[Session], settings: Mapping[str, Any] | None = None) -> None:
        """Removes the rows that a table of that name, and with these settings, had on other owners."""
        for session in sessions:
            with suppress(UnknownNameError, StaleHandleError):
                found = await self.attach(session, name)
                if found.class_name == names.SHARD and (
                    settings is None or (await found.call("describe"))["settings"] == settings
                ):
                    await delete_rows(session, name)

    async def _remove(self, table: Table) -> None:
        """Removes a table from the owners of its rows, as they are now, and from those of earlier and later ones."""
        with suppress(PsError):
            await table.follower.follow_all()
        sessions = [shard.session for shard in table.shards.values()]
        answers = await asyncio.gather(*(delete_rows(each, table.name) for each in sessions), return_exceptions=True)
        # Owners from which all slots have moved still have the table, and those to which some move have it already.
        rest = [each for each in self.sessions.by_owner.values() if each not in sessions]
        await self._clear(table.name, [each for each in rest if each.state == "connected"], table.settings)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    async def forget(self, table: Table, owner: str) -> None:
        """Removes what `extend` has made on an owner that has no slots of a table, which is gone."""
        with suppress(PsError, KeyError):
            shard = table.known_shards[owner]
            if owner not in (await shard.call("describe"))["routing"]["owners"]:
                await delete_rows(shard.session, table.name)

    async def _found(self, asked: Sequence[str], wanted: TableSpec) -> Table:
        """A table that exists, found on one of the owners that are asked."""
        name = wanted.name
        sessions = await self.sessions.all_of(asked)
        for position, session in enumerate(sessions):
            try:
                found = await self.attach(session, name)
                break
            except UnknownNameError as error:
                if position + 1 == len(sessions):
                    raise UnknownNameError(f"{error}; to make a table of that name, give dim= as well") from None
        if found.class_name != names.SHARD:
            raise InvalidArgumentError(f"{name!r} is a {found.class_name}, not a table")
        described = await found.call("describe")
        owners = described["routing"]["owners"]
        known, given = {**described["settings"], "owners": sorted(owners)}, wanted.given
        if are_owners(given.get("owners"), described):
            del given["owners"]
        if any(known[each] != value for each, value in given.items()):
            raise NameConflictError(
                f"the table {name!r} exists, with {differences(known, given)}. Ask for it with its name alone, choose "
                "another name, or put yours in its place with dim= and replace=True"
            )
        others = await self.sessions.all_of(owner for owner in owners if owner != found.owner)
        shards = await asyncio.gather(*(self.attach(each, name) for each in others))
        every = {found.owner: found} | {each.owner: each for each in shards}
        if "moves" in described["routing"]:
            every |= await self._elsewhere(name, every)
        may_only_read = wanted.policy is None and wanted.non_finite is None
        return await self._open(every, wanted.policy, wanted.non_finite, may_only_read=may_only_read)

    async def _elsewhere(self, name: str, known: Mapping[str, RemoteObject]) -> dict[str, RemoteObject]:
        """What connected owners besides these have of a table: an owner that was killed without a log may not know that
        its rows have moved there."""
        found = {}
        for session in self.sessions.by_owner.values():
            if session.owner not in known and session.state == "connected":
                with suppress(UnknownNameError):
                    shard = await self.attach(session, name)
                    if shard.class_name == names.SHARD:
                        found[shard.owner] = shard
        return found

    async def _shard(self, session: Session, settings: Mapping[str, Any], replace: bool) -> RemoteObject:
        """The rows of a table on one owner, made now or found there."""
        name = settings["name"]
        try:
            return await self.create(session, name, settings, replace)
        except NameConflictError:
            there = await self.attach(session, name)
            if there.class_name != names.SHARD:
                raise NameConflictError(
                    f"{name!r} is a {there.class_name} on owner {session.owner!r}, not a table: choose another name, "
                    "or put the table in its place with replace=True"
                ) from None
            known = (await there.call("describe"))["settings"]
            raise NameConflictError(
                f"the table {name!r} exists already on owner {session.owner!r}, with {differences(known, settings)}. "
                "Ask for it with the same arguments, with its name alone, choose another name, or put yours in its "
                "place with replace=True"
            ) from None

    async def _open(
        self,
        shards: Mapping[str, RemoteObject],
        policy: Policy | None,
        non_finite: NonFinite | None,
        replace: bool = False,
        may_only_read: bool = False,
    ) -> Table:
        """A table whose rows are there on all owners; without an optimizer for who `may_only_read` and has no right to
        it."""
        described = await asyncio.gather(*(shard.call("describe") for shard in shards.values()))
        routing = reduce(Routing.merged, (Routing.from_plain(each["routing"]) for each in described))
        settings = described[0]["settings"]
        if missing := set(routing.owners) - set(shards):
            try:
                sessions = await self.sessions.all_of(missing)
            except UnknownNameError:
                raise UnknownNameError(
                    f"the table has rows on {sorted(missing)}, which this client is not connected to"
                ) from None
            more = {each.owner: await self.attach(each, settings["name"]) for each in sessions}
            shards = {**shards, **more}
        kept = {owner: shards[owner] for owner in routing.owners}
        table = Table(settings, routing, kept)
        try:
            table.optimizer = await self._optimizer_of(table, kept, policy, non_finite, replace)
        except PermissionDeniedError as error:
            if not may_only_read:
                raise
            table.optimizer = cast("DistributedOptimizer", NoOptimizer(error))
        elsewhere, adopt = partial(self._elsewhere, table.name, {}), partial(self._adopt, table)
        table.follower = Follower(lambda: table.routing, table.known_shards, adopt, elsewhere)
        table.optimizer.everywhere, table.optimizer.follow = table.follower.everywhere, table.follower.follow_all
        table.optimizer.take_marks(marks_of(routing))
        table.removed = partial(self._remove, table)
        return table

    async def _optimizer_of(
        self,
        table: Table,
        shards: Mapping[str, RemoteObject],
        policy: Policy | None = None,
        non_finite: NonFinite | None = None,
        replace: bool = False,
    ) -> DistributedOptimizer:
        """The optimizer of the rows of some owners, made now or found there."""
        make = partial(
            self.make_optimizer,
            names.OPTIMIZER,
            [shard.parameter(names.ROWS) for shard in shards.values()],
            dict(table.settings["optimizer"]),
            f"{table.name}.optimizer",
            "consistent",
            policy=policy,
            replace=replace,
            joins=False,
        )
        try:
            made: DistributedOptimizer = await make(non_finite=non_finite or "refuse")
        except NameConflictError as error:
            if non_finite is not None:
                raise
            try:
                # The table may have been made so, and this client did not say.
                made = await make(non_finite="apply")
            except NameConflictError as other:
                # One of them names what differs besides.
                raise (other if "non_finite" in str(error) else error) from None
        return made

    async def _further(self, table: Table, shards: Mapping[str, RemoteObject]) -> DistributedOptimizer:
        return await self._optimizer_of(table, shards, None, "refuse" if table.optimizer.refuses else "apply")

    async def _adopt(self, table: Table, routing: Routing) -> None:
        """Has a table know that its rows are where a routing says."""
        try:
            sessions = await self.sessions.all_of(routing.owners)
        except UnknownNameError as error:
            raise UnknownNameError(
                f"rows of table {table.name!r} have moved to {', '.join(routing.owners)}, and {error}; connect with "
                "the addresses of all of them, or through the directory of their group"
            ) from None
        for session in sessions:
            if session.owner not in table.known_shards:
                table.known_shards[session.owner] = await self.attach(session, table.name)
        shards = {owner: table.known_shards[owner] for owner in routing.owners}
        if not isinstance(table.optimizer, NoOptimizer) and shards.keys() != table.optimizer.remotes.keys():
            table.optimizer.take_parts(await self._further(table, shards))
        table.shards, table.routing = shards, routing
        table.optimizer.take_marks(marks_of(routing))

    async def extend(self, table: Table, owner: str) -> None:
        """Makes what an owner needs to get rows of a table, with the options that the optimizer of the table has now.
        Raises `NameConflictError` if something else has one of the names there."""
        (session,) = await self.sessions.all_of([owner])
        shard = table.known_shards[owner] = await self.create(session, table.name, table.settings, False)
        made = await self._further(table, {owner: shard})
        first = next(iter(table.optimizer.remotes.values()))
        await made.remotes[owner].load_state_dict(await first.state_dict())
        known = (await self.attach(first.session, table.name)).parameter(names.ROWS)
        if shard.parameter(names.ROWS).requires_grad != known.requires_grad:
            await shard.parameter(names.ROWS).requires_grad_(known.requires_grad)
