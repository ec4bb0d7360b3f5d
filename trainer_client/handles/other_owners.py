"""Other owners: those that a client was not connected to at first, and comes to know by handles and names."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable, MutableMapping
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from ps_wire.errors import NameConflictError, PsError, UnknownNameError
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import AttachRequest, LookupRequest, Member
from trainer_client.handles.references import Reference, RRef
from trainer_client.pending import DEFAULT
from trainer_client.session.in_flight import nothing
from trainer_client.session.session import Session

if TYPE_CHECKING:
    from ps_wire.connections.connection import Connector
    from ps_wire.refs import Ref
    from trainer_client.pending import Pending
    from trainer_client.session.settings import Settings


class OtherOwners:
    """Finds owners by name, through the directories of those that are known, and holds references to their objects.

    Args:
        trainer: The client's 16 random bytes.
        settings: How patient to be.
        sessions: The sessions of the client, by the name of the owner; it grows.
        dial: Gives a connector for an address.

    Attributes:
        directory: Where to ask for owners; all that are known, if None.
    """

    def __init__(
        self,
        trainer: bytes,
        settings: Settings,
        sessions: MutableMapping[str, Session],
        dial: Callable[[str], Connector] | None,
    ) -> None:
        self.directory: Session | None = None
        self._trainer = trainer
        self._settings = settings
        self._sessions = sessions
        self._dial = dial
        self._opened: list[Session] = []
        self._opening: dict[str, asyncio.Task[Session]] = {}
        self._references: WeakValueDictionary[tuple[str, str], Reference] = WeakValueDictionary()

    async def reach(self, owner: str, address: str = "") -> Session:
        """The session with an owner, opened now if there is none.

        Args:
            owner: Its name.
            address: Where it listens, if that is known.

        Raises:
            UnknownNameError: Nobody knows it.
            UnavailableError: It cannot be reached in time.
        """
        session = self._sessions.get(owner)
        if session is not None and (session.state != "closed" or session not in self._opened):
            return session
        task = self._opening.get(owner)
        if task is None:
            task = self._opening[owner] = asyncio.get_running_loop().create_task(
                self._open(owner, address), context=contextvars.Context()
            )
            task.add_done_callback(lambda _: self._opening.pop(owner))
        return await asyncio.shield(task)

    async def find(self, name: str) -> Member:
        """Asks every owner that is known for another.

        Raises:
            UnknownNameError: None knows it.
        """
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
        """Asks an owner for a member.

        Raises:
            UnknownNameError: It does not know it.
        """
        timeout = None if request.wait_seconds else DEFAULT
        return directory.submit(Request(lookup=request), None, lambda reply, _: reply.lookup.member, timeout)

    async def connect(self, address: str, owner: str = "") -> Session:
        """The session with the owner at an address.

        Args:
            address: Where it listens.
            owner: Its name, if that is known: there may be another by now.

        Raises:
            UnavailableError: It cannot be reached in time.
            NameConflictError: It has the name of one that is known.
        """
        if self._dial is None:
            raise UnknownNameError(f"this client cannot reach {address}: it was not told how")
        session = Session(self._dial(address), self._trainer, self._settings, self, owner)
        try:
            await session.open()
        except BaseException:
            await session.close()
            raise
        if session.owner in self._sessions:
            await session.close()
            raise NameConflictError(f"the owner at {address} is called {session.owner!r} too; choose another name")
        self._opened.append(session)
        self._sessions[session.owner] = session
        return session

    async def again(self, session: Session) -> Session:
        """Another session with the owner of one that was given up.

        Raises:
            UnavailableError: It cannot be reached in time.
        """
        if self._sessions.get(session.owner) is session:
            del self._sessions[session.owner]
        return await self.connect(session.address, session.owner)

    @property
    def borrowed(self) -> int:
        """How many objects of owners that were found are held."""
        return len(self._references)

    async def take_hold(self, refs: Iterable[Ref]) -> list[Reference]:
        """Gets a reference to each of some objects of any owners.

        Raises:
            PsError: An owner cannot be found or reached, or the object is gone.
        """
        return list(await asyncio.gather(*map(self._take_hold, refs)))

    def held(self, ref: Ref) -> RRef:
        """The handle of an object of which hold was taken."""
        return RRef(self._sessions[ref.owner], ref, self._references.get((ref.owner, ref.object_id)))

    async def close(self) -> None:
        """Leaves the owners that were found."""
        for task in list(self._opening.values()):
            task.cancel()
        await asyncio.gather(*(session.close() for session in self._opened))

    async def _open(self, owner: str, address: str) -> Session:
        address = address or (await self.find(owner)).address
        self._sessions.pop(owner, None)
        return await self.connect(address, owner)

    async def _take_hold(self, ref: Ref) -> Reference:
        key = (ref.owner, ref.object_id)
        known = self._references.get(key)
        if known is not None and known.counts:
            return known
        session = await self.reach(ref.owner)
        request = Request(attach=AttachRequest(handle=ref._replace(parameter="").to_message()))
        await session.submit(request, None, nothing)
        reference = self._references.get(key)
        if reference is None or not reference.counts:
            reference = self._references[key] = Reference(session, ref.object_id)
        else:
            # Somebody else was faster; one count is too many.
            session.release(ref.object_id)
        return reference
