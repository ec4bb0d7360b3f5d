"""Makes tables on their owners, and attaches to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ps_wire import policies
from ps_wire.compression.registry import check_suitable_for_rows
from ps_wire.errors import InvalidArgumentError, NameConflictError, PsError, UnknownNameError
from ps_wire.tables import names, options
from ps_wire.tables.routing import Routing
from trainer_client.handles.handles import RemoteObject
from trainer_client.pending import Pending
from trainer_client.replicas.options import choice_of
from trainer_client.tables import deletion
from trainer_client.tables.deletion import delete_rows
from trainer_client.tables.look_ups import look_up_all
from trainer_client.tables.table import Table
from trainer_client.tables.together import together
from trainer_client.tables.wanted import check_only_tables, check_policies, differences

if TYPE_CHECKING:
    import torch

    from ps_wire.compression.choice import Choice
    from ps_wire.policies import Policy
    from trainer_client.optimizers.creation import NonFinite
    from trainer_client.replicas.options import Compress
    from trainer_client.session.session import Session
    from trainer_client.tables.wanted import Wanted


class Connected(Protocol):
    """The owners that a client is connected to."""

    @property
    def by_owner(self) -> Mapping[str, Session]:
        """The sessions, by name of the owner."""

    @property
    def names(self) -> Sequence[str]:
        """The owners of a table for which the program names none."""

    @property
    def in_group(self) -> bool:
        """Whether these are the owners of a group: they join and leave, and other trainers may know others."""

    async def all_of(self, owners: Iterable[str]) -> list[Session]:
        """The sessions with several owners. Raises `UnknownNameError`."""


class Tables:
    """Makes the tables of a client.

    `create` makes the rows of a table on an owner, or finds those of that name. `attach` finds an object of that name
    on an owner. `optimizer` makes one as `optimizers.creation.create`.
    """

    def __init__(
        self,
        sessions: Connected,
        create: Callable[[Session, str, Mapping[str, Any], bool], Pending[RemoteObject]],
        attach: Callable[[Session, str], Pending[RemoteObject]],
        optimizer: Callable[..., Any],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._sessions = sessions
        self._create = create
        self._attach = attach
        self._optimizer = optimizer
        self._loop = loop

    def table(self, wanted: Wanted, compress: Compress) -> Pending[Table]:
        """Makes a table, or attaches to it; errors as for `Client.table`.

        Without `dim` none can be made, so what else is wanted has to be as the table has it, also with `replace`.
        """
        codecs = _codecs(compress)
        if wanted.policy is not None:
            policies.check(wanted.policy)
        owners = self._sessions.names if wanted.owners is None else wanted.owners
        if wanted.dim is None:
            making = self._found(owners, wanted)
        elif wanted.owners is None and self._sessions.in_group:
            making = self._agreed(owners, wanted)
        else:
            making = self._made(owners, wanted)
        return Pending.run(self._loop, _compressing(making, codecs))

    def delete(self, session: Session, name: str) -> Pending[None]:
        """Removes an object of any kind; arguments and errors as for `Client.delete`."""
        return deletion.delete(self._sessions.all_of, session, name)

    def look_up(self, wanted: Mapping[Table, Any], timeout: float | None) -> Pending[dict[Table, torch.Tensor]]:
        """Looks up in several tables; arguments and errors as for `Client.look_up`."""
        if not isinstance(wanted, Mapping) or not all(isinstance(each, Table) for each in wanted):
            raise InvalidArgumentError(
                f"look_up() takes a dictionary with the ids for each table, {{users: ids}}, not {wanted!r}"
            )
        return look_up_all(self._loop, wanted, timeout)

    def optimizer(
        self,
        listed: Iterable[Any],
        make: Callable[..., Coroutine[Any, Any, Any]],
        cls: Any,
        policy: Policy | None,
        given: Iterable[str],
    ) -> Pending[Any]:
        """An optimizer over parameters and tables, or groups of parameters beside tables.

        `make` makes the optimizer of the parameters, which are its keyword argument `parameters`. `given` are the names
        of all arguments that were given for it besides its class, which is None if there are only tables, and its
        policy. Raises `InvalidArgumentError` for a table in a group or in place of a list, and for an argument that
        holds for nothing.
        """
        if isinstance(listed, Table):
            raise InvalidArgumentError(
                f"give a list with {listed!r} in it, [table, *net.parameters()]; the rows of a table are stepped by "
                "the optimizer that it was made with, ps.table(…, optimizer=tc.tables.Adagrad(…))"
            )
        tables, rest = _split(listed)
        if cls is None and (rest or not tables):
            raise InvalidArgumentError(
                "parameters need the class of an optimizer, such as torch.optim.SGD, and not None"
            )
        if not tables:
            return Pending.run(self._loop, make(parameters=rest))
        if rest:
            check_policies(tables, policy)
        else:
            check_only_tables(tables, cls, [*given, *(["policy"] if policy is not None else [])])
        own = make(parameters=rest) if rest else None
        return Pending.run(self._loop, together(self._loop, tables, own))

    async def _agreed(self, owners: Sequence[str], wanted: Wanted) -> Table:
        """A table on the owners that it has already; on these, if there is none.

        It is made on the first of them before the others, so that of several trainers, which know different owners, the
        first one decides.
        """
        existing = await self._owners_of(owners, wanted)
        try:
            return await self._made(existing or owners, wanted, before=0 if existing else 1)
        except NameConflictError:
            decided = await self._owners_of(owners, wanted)
            if decided == existing or decided is None:
                raise
            return await self._made(decided, wanted)

    async def _owners_of(self, owners: Iterable[str], wanted: Wanted) -> list[str] | None:
        """The owners of the table of that name; None if there is none, or it is one to replace."""
        there = [each for each in await self._sessions.all_of(owners) if each.state == "connected"]
        found = await asyncio.gather(*(self._attach(each, wanted.name) for each in there), return_exceptions=True)
        for each in found:
            if isinstance(each, RemoteObject) and each.class_name == names.SHARD:
                described = await each.call("describe")
                its = sorted(described["routing"]["owners"])
                is_other = {**described["settings"], "owners": its} != wanted.settings(its)
                return None if wanted.replace and is_other else its
        return None

    async def _made(self, owners: Sequence[str], wanted: Wanted, before: int = 0) -> Table:
        """A table on these owners; `before` is on how many of them it is made before the others."""
        sessions = await self._sessions.all_of(owners)
        settings = wanted.settings(sorted(owners))
        Routing.even(settings["owners"])
        first = [await self._shard(each, settings, wanted.replace) for each in sessions[:before]]
        rest = (self._shard(each, settings, wanted.replace) for each in sessions[before:])
        made = [*first, *await asyncio.gather(*rest, return_exceptions=True)]
        for each in made:
            if isinstance(each, BaseException):
                await _undo(made)
                raise each
        shards = {each.owner: each for each in made if isinstance(each, RemoteObject)}
        if wanted.replace:
            others = [each for each in self._sessions.by_owner.values() if each not in sessions]
            await self._clear(wanted.name, others)
        return await self._open(shards, wanted.policy, wanted.non_finite or "refuse", wanted.replace)

    async def _clear(self, name: str, sessions: Iterable[Session]) -> None:
        """Removes the rows that a table of that name had on other owners."""
        for session in sessions:
            with suppress(UnknownNameError):
                found = await self._attach(session, name)
                if found.class_name == names.SHARD:
                    await delete_rows(session, name)

    async def _found(self, asked: Sequence[str], wanted: Wanted) -> Table:
        """A table that exists, found on one of the owners that are asked."""
        name = wanted.name
        sessions = await self._sessions.all_of(asked)
        for position, session in enumerate(sessions):
            try:
                found = await self._attach(session, name)
                break
            except UnknownNameError as error:
                if position + 1 == len(sessions):
                    raise UnknownNameError(f"{error}; to make a table of that name, give dim= as well") from None
        if found.class_name != names.SHARD:
            raise InvalidArgumentError(f"{name!r} is a {found.class_name}, not a table")
        described = await found.call("describe")
        owners = described["routing"]["owners"]
        known, given = {**described["settings"], "owners": sorted(owners)}, wanted.given
        if any(known[each] != value for each, value in given.items()):
            raise NameConflictError(
                f"the table {name!r} exists, with {differences(known, given)}. Ask for it with its name alone, choose "
                "another name, or put yours in its place with dim= and replace=True"
            )
        others = await self._sessions.all_of(owner for owner in owners if owner != found.owner)
        shards = await asyncio.gather(*(self._attach(each, name) for each in others))
        every = {found.owner: found} | {each.owner: each for each in shards}
        return await self._open(every, wanted.policy, wanted.non_finite)

    async def _shard(self, session: Session, settings: Mapping[str, Any], replace: bool) -> RemoteObject:
        """The rows of a table on one owner, made now or found there."""
        name = settings["name"]
        try:
            return await self._create(session, name, settings, replace)
        except NameConflictError:
            there = await self._attach(session, name)
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
    ) -> Table:
        """A table whose rows are there on all owners."""
        described = await asyncio.gather(*(shard.call("describe") for shard in shards.values()))
        routing = max((Routing.from_plain(each["routing"]) for each in described), key=lambda each: each.version)
        if missing := set(routing.owners) - set(shards):
            raise UnknownNameError(f"the table has rows on {sorted(missing)}, which this client is not connected to")
        settings = described[0]["settings"]
        kept = {owner: shards[owner] for owner in routing.owners}
        table = Table(settings, routing, kept, options.from_plain(settings["optimizer"]))
        make = partial(
            self._optimizer,
            names.OPTIMIZER,
            table.parameters(),
            dict(settings["optimizer"]),
            f"{table.name}.optimizer",
            "consistent",
            policy=policy,
            replace=replace,
            joins=False,
        )
        try:
            table.optimizer = await make(non_finite=non_finite or "refuse")
        except NameConflictError as error:
            if non_finite is not None:
                raise
            try:
                # The table may have been made so, and this client did not say.
                table.optimizer = await make(non_finite="apply")
            except NameConflictError as other:
                # One of them names what differs besides.
                raise (other if "non_finite" in str(error) else error) from None
        return table


def _codecs(compress: Compress) -> Choice | None:
    """The codecs for the gradients of rows. Raises `InvalidArgumentError` if one of them does not suit rows."""
    if compress is None:
        return None
    choice = choice_of(compress)
    for codec in choice.codecs:
        check_suitable_for_rows(codec)
    return choice


async def _compressing(making: Awaitable[Table], codecs: Choice | None) -> Table:
    """The table, for which this client sends encoded gradients."""
    table = await making
    table.compress = codecs
    return table


async def _undo(made: Iterable[RemoteObject | BaseException]) -> None:
    """Removes what was made on some owners, because others refused."""
    for each in made:
        if isinstance(each, RemoteObject) and each.was_made:
            with suppress(PsError):  # another program was faster, or the owner is gone
                await delete_rows(each.session, each.name)


def _split(listed: Iterable[Any]) -> tuple[list[Table], list[Any]]:
    """The tables among parameters and groups of parameters, and the rest.

    Raises `InvalidArgumentError` for a table in a group, whose options it would not have.
    """
    tables, rest = [], []
    for each in listed:
        if isinstance(each, Table):
            tables.append(each)
            continue
        members = each.get("params", ()) if isinstance(each, Mapping) else ()
        members = members if isinstance(members, (list, tuple)) else [members]
        if any(isinstance(member, Table) for member in members):
            raise InvalidArgumentError(
                "a table has options of its own, so it stands beside groups of parameters, and not inside of one"
            )
        rest.append(each)
    return tables, rest
