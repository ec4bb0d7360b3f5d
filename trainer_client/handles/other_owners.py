"""Finds owners that a client is not connected to, by handles and names, and connects to them."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Iterable, MutableMapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from ps_wire.errors import ClosedError, NameConflictError, PsError, UnavailableError, UnknownNameError
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import AttachRequest, LookupRequest, Member, MembersRequest
from trainer_client.handles.references import Reference, RRef
from trainer_client.session.session import Session
from trainer_client.transport.channels import UnaryRequests
from trainer_client.transport.following import FollowingConnector
from trainer_client.transport.resolvers import found

if TYPE_CHECKING:
    from ps_wire.connections.connection import Connector
    from ps_wire.refs import Ref
    from trainer_client.pending import Pending
    from trainer_client.session.settings import Settings
    from trainer_client.transport.resolvers import Candidates, Find


_LOOK_SECONDS: Final = 2.0
"""Seconds that one owner may take to say where another is, when that is dialled again."""


class OtherOwners:
    """Finds owners by name in the directories of known owners, and holds references to their objects.

    Opened sessions are added to those of the client, by the name of the owner. `directory` is the session with the
    owner to ask; None to ask all known owners. `addresses` are for when that owner cannot be asked. If the program gave
    a function that tells where owners are, `find_address` is that. Otherwise `candidates` are the addresses of owners
    that may be asked.

    An owner that was found by its name is looked for again each time that its stream breaks.
    """

    def __init__(
        self,
        trainer: bytes,
        settings: Settings,
        sessions: MutableMapping[str, Session],
        dial: Callable[[str], Connector] | None,
    ) -> None:
        self.directory: Session | None = None
        self.addresses: dict[str, str] = {}
        self.find_address: Find | None = None
        self.candidates: Candidates | None = None
        self._trainer = trainer
        self._settings = settings
        self._sessions = sessions
        self._dial = dial
        self._opened: list[Session] = []
        # The names of all owners that there was a session with.
        self._met: set[str] = set()
        # By the name of the owner; without one for any of the candidates.
        self._opening: dict[str, asyncio.Task[Session]] = {}
        self._references: WeakValueDictionary[tuple[str, str], Reference] = WeakValueDictionary()

    async def reach(self, owner: str, address: str = "") -> Session:
        """The session with an owner, opened now if there is none. Raises as `find` and `connect`."""
        session = self._sessions.get(owner)
        if session is not None and (session.state != "closed" or session not in self._opened):
            return session
        return await self._once(owner, partial(self._open, owner, address))

    async def all_there(self) -> list[Session]:
        """As `Others.all_there`."""
        with suppress(PsError):
            if self.directory is not None:
                listed = await self.members(await self.asked(), MembersRequest())
                owners = [self.reach(each.name, each.address) for each in listed if each.is_owner]
                await asyncio.gather(*owners, return_exceptions=True)
        return [each for each in self._sessions.values() if each.state == "connected"]

    async def find(self, name: str) -> Member:
        """Asks the known owners for the address of another; `UnknownNameError` if none has it in its directory."""
        if self.directory is not None:
            return await self.ask(self.directory, LookupRequest(name=name))
        for session in list(self._sessions.values()):
            try:
                return await self.ask(session, LookupRequest(name=name))
            except PsError:
                continue
        known = ", ".join(self._sessions)
        raise UnknownNameError(f"none of the owners known here ({known}) can tell where {name!r} is")

    def ask(self, directory: Session, request: LookupRequest) -> Pending[Member]:
        """Looks a member up in an owner's directory; `UnknownNameError` if it is not there."""
        return self._ask(directory, request, self._patience(request.wait_seconds))

    def _ask(self, directory: Session, request: LookupRequest, timeout: float | None) -> Pending[Member]:
        return directory.submit(Request(lookup=request), None, lambda reply, _: reply.lookup.member, timeout)

    def members(self, directory: Session, request: MembersRequest) -> Pending[list[Member]]:
        """Lists the members in an owner's directory."""
        timeout = self._patience(request.wait_seconds)
        return directory.submit(Request(members=request), None, lambda reply, _: list(reply.members.members), timeout)

    async def connect(self, address: str, owner: str = "", *, follows: bool = False) -> Session:
        """Opens a session at an address; another owner than the one with that name may use it by now. `follows` as for
        `open`.

        `UnavailableError` if it cannot be reached in time, `NameConflictError` if a known owner elsewhere has
        the same name.
        """
        session = await self.open(address, owner, follows=follows)
        try:
            self.add(session)
        except NameConflictError:
            self._opened.remove(session)
            await session.close(fails=True)
            raise
        return session

    async def open(self, address: str, owner: str = "", *, follows: bool = False) -> Session:
        """Like `connect`, but other sessions do not find the owner by its name before `add` was called.

        If the session `follows`, the owner is looked for each time that the stream breaks, and at first if it has no
        address: by its name; without one it is any of the candidates at first.
        """
        if self._dial is None:
            raise UnknownNameError(f"this client cannot connect to {address}: it has no connector for addresses")
        following = self._following(owner, address) if follows else None
        connector = following or self._dial(address)
        session = Session(connector, self._trainer, self._settings, self, owner)
        if owner in self._met:
            session.begins_anew, session.lost_pass = True, self._settings.last_pass()
        try:
            await session.open()
        except BaseException:
            await session.close(fails=True)
            raise
        self._opened.append(session)
        self._met.add(session.owner)
        if following is not None and not owner:
            following.find_with(partial(self._look_among_candidates, session.owner))
        return session

    def add(self, session: Session) -> None:
        """Makes an owner known by its name; `NameConflictError` if another owner has it."""
        if session.owner in self._sessions:
            raise NameConflictError(
                f"the owner at {session.address} has the name {session.owner!r}, which another owner has already; "
                "choose another name"
            )
        self._sessions[session.owner] = session

    async def again(self, session: Session) -> Session:
        """Opens a new session with the owner of a session that was given up. Raises as `connect`."""
        if self._sessions.get(session.owner) is session:
            del self._sessions[session.owner]
        return await self.connect(session.address, session.owner)

    @property
    def borrowed(self) -> int:
        """Number of objects on further owners that the client holds references to."""
        return len(self._references)

    async def take_hold(self, refs: Iterable[Ref]) -> list[Reference]:
        """Takes a reference to each object, on any owner. `PsError` if one cannot be found or reached, or is gone."""
        return list(await asyncio.gather(*map(self._take_hold, refs)))

    def held(self, ref: Ref) -> RRef:
        """A handle to an object that `take_hold` has taken a reference to."""
        return RRef(self._sessions[ref.owner], ref, self._references.get((ref.owner, ref.object_id)))

    async def close(self, fails: bool = False) -> None:
        """Closes the sessions with further owners; an argument as for `Session.close`."""
        for task in list(self._opening.values()):
            task.cancel()
        await asyncio.gather(*(session.close(fails) for session in self._opened))

    def _patience(self, wait_seconds: float) -> float | None:
        """The timeout of a question: not that of calls, which a program may set to less than finding a member takes."""
        return None if wait_seconds else self._settings.connect_timeout

    async def _once(self, owner: str, opening: Callable[[], Coroutine[Any, Any, Session]]) -> Session:
        """What a coroutine gives that runs once at a time for an owner, however many wait for it."""
        task = self._opening.get(owner)
        if task is None:
            task = self._opening[owner] = asyncio.get_running_loop().create_task(
                opening(), context=contextvars.Context()
            )
            task.add_done_callback(lambda _: self._opening.pop(owner))
        return await asyncio.shield(task)

    async def _open(self, owner: str, address: str) -> Session:
        if not address and self.directory is not None and self.directory.state != "connected":
            address = self.addresses.get(owner, "")
        known = self._sessions.get(owner)
        if known is not None and known.follows and (known.state != "closed" or known.requests.reopen()):
            await known.settled()
            return known
        if not address and self.candidates is not None and not self._has_directory:
            address = await self._look_for(owner)
        elif not address and self.find_address is None:
            address = (await self.find(owner)).address
        self._sessions.pop(owner, None)
        return await self.connect(address, owner, follows=True)

    async def asked(self) -> Session:
        """The session with the owner to ask; with another of the candidates, if that is away."""
        if self.directory is None or (self.candidates is not None and not self._has_directory):
            self.directory = await self._once("", self._ask_candidates)
        elif self.directory.state == "closed":
            self.directory = await self.reach(self.directory.owner, self.directory.address)
        return self.directory

    @property
    def _has_directory(self) -> bool:
        return self.directory is not None and self.directory.state == "connected"

    async def _ask_candidates(self) -> Session:
        """The session with an owner that can be asked: one that is connected, or else opened with a candidate."""
        for each in self._sessions.values():
            if each.state == "connected":
                return each  # all of them were found in the group
        met = set(self._met)
        session = await self.open("", follows=True)
        owner = session.owner
        known = self._sessions.get(owner)
        if known is None and owner not in met and owner not in self._opening:
            self._sessions[owner] = session
            return session
        self._opened.remove(session)
        # Without a goodbye, which would end what the owner keeps for the session that is known.
        session.requests.end(ClosedError("there is another session with this owner"))
        await session.close()
        if known is not None:
            known.try_now()
        # In that session, or in another that says that an earlier one was given up.
        return await self.reach(owner, session.address)

    def _following(self, owner: str, address: str) -> FollowingConnector:
        assert self._dial is not None
        if not owner:
            assert self.candidates is not None
            return FollowingConnector(self.candidates.next, self._dial, str(self.candidates))
        return FollowingConnector(partial(self._look_for, owner), self._dial, owner, address)

    async def _look_among_candidates(self, owner: str) -> str:
        """Where an owner is now, or may be: nobody else may know."""
        assert self.candidates is not None
        try:
            return await self._look_for(owner)
        except UnavailableError:
            return await self.candidates.next()

    async def _look_for(self, owner: str) -> str:
        """Where an owner is now. Raises if that cannot be found out."""
        if self.find_address is not None:
            return await found(self.find_address, owner)
        address = await self._told(owner)
        if self.candidates is not None:
            # Those that were given may all be gone when that one is looked for again.
            self.candidates.found[owner] = address
        return address

    async def _told(self, owner: str) -> str:
        """Where an owner is, as another one says. Raises `UnavailableError` if none can be asked that knows."""
        request = LookupRequest(name=owner)
        known = dict.fromkeys([*([self.directory] if self.directory is not None else ()), *self._sessions.values()])
        for session in known:
            if session.state == "connected" and session.owner != owner:
                with suppress(PsError):
                    return (await self._ask(session, request, _LOOK_SECONDS)).address
        candidates = self.candidates
        for address in await candidates.all() if candidates is not None else ():
            assert candidates is not None
            tls, settings = candidates.tls_of(address, self._settings.tls), self._settings
            unary = UnaryRequests(tls, token=settings.token, namespace=settings.namespace)
            try:
                with suppress(PsError):
                    return str((await unary.ask(address, "Lookup", request, _LOOK_SECONDS)).member.address)
            finally:
                await unary.close()
        raise UnavailableError(f"no owner that can be reached knows where {owner!r} is")

    async def _take_hold(self, ref: Ref) -> Reference:
        key = (ref.owner, ref.object_id)
        known = self._references.get(key)
        if known is not None and known.counts:
            return known
        session = await self.reach(ref.owner)
        request = Request(attach=AttachRequest(handle=ref._replace(parameter="").to_message()))
        taken = await session.submit(request, None, lambda *_: Reference(session, ref.object_id))
        reference = self._references.get(key)
        if reference is None or not reference.counts:
            reference = self._references[key] = taken
        # Otherwise another task has taken one meanwhile, and this one is given back.
        return reference
