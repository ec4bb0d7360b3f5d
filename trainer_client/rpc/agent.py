"""This process as a member of a group: an owner and a client on one event loop, and an entry in the directory."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ps_service.passes import calls
from ps_wire.errors import DeadlineExceededError, InvalidArgumentError, PsError
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import AttachRequest, LookupRequest, Member, RegisterRequest
from trainer_client.client.client import Client
from trainer_client.handles.handles import RemoteModule, handle_from
from trainer_client.pending import Pending
from trainer_client.rpc.futures import Future
from trainer_client.rpc.options import UNSET
from trainer_client.rpc.peers import GroupPeers
from trainer_client.rpc.rref import wrapped
from trainer_client.rpc.workers import WorkerInfo
from trainer_client.transport.grpc_stream import GrpcConnector
from trainer_client.transport.in_process import MemoryConnector

if TYPE_CHECKING:
    from ps_service.hosting.references import RRef as HostedRRef
    from ps_service.server import Server
    from trainer_client.handles.references import RRef as Handle
    from trainer_client.rpc.rendezvous import Group
    from trainer_client.session.session import Session
    from trainer_client.session.settings import Settings

_log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_TRY_SECONDS: Final = 0.5
_LONGEST_TRY_SECONDS: Final = 10.0
"""Longest pause between two attempts to enter the directory again."""

_LAST_ONE_SECONDS: Final = 0.5
"""Least time that the member with the directory waits for others that leave, too: they may still need an answer."""


class Agent:
    """An owner and a client in one process, on one event loop.

    Args:
        server: The owner, which has begun to listen.
        settings: Timeouts of the client.
        address: Address under which others reach the owner; empty for the address that it listens on.

    Attributes:
        name: Its name in the group, and the owner's.
        engine: The owner's engine.
        server: The owner.
        client: The client.
        loop: Their event loop.
        member: Its entry in the directory.
        group: The members that began together with `world_size`; None in an open group.
        rendezvous_counts: Number of rendezvous by name and members, so that each has its own key.
    """

    def __init__(self, server: Server, settings: Settings, address: str = "") -> None:
        self.server = server
        self.engine = server.engine
        self.name = server.engine.name
        self.loop = asyncio.get_running_loop()
        self._settings = settings
        self.member = Member()
        self._returning: asyncio.Task[None] | None = None
        self.group: Group | None = None
        self.keeps_directory = True
        self._address = address or server.address
        self._outstanding: weakref.WeakSet[Pending[Any]] = weakref.WeakSet()
        self.rendezvous_counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self._lock = threading.Lock()
        self._workers: dict[str, WorkerInfo] = {}
        self.client = Client([MemoryConnector(server.servicer.serve)], settings, GrpcConnector)

    async def join(self, directory: str = "", id: int | None = None) -> None:
        """Enters the group.

        Args:
            directory: Address of the owner that keeps the directory; empty for this process's own directory.
            id: The rank to enter with; None for a free number.

        Raises:
            UnavailableError: The directory cannot be reached in time.
            NameConflictError: The name or number is taken.
        """
        await self.client.open()
        others = self.client.others
        others.directory = await others.connect(directory) if directory else self.session_here
        self.keeps_directory = not directory
        self.engine.membership.join(GroupPeers(self))
        await self._enter(others.directory, id)

    async def _enter(self, directory: Session, id: int | None) -> None:
        directory.when_lost(self._has_lost_its_place)
        request = RegisterRequest(name=self.name, address=self._address, id=id)
        self.member = await directory.submit(Request(register=request), None, lambda reply, _: reply.register.member)

    def _has_lost_its_place(self) -> None:
        """The directory's owner has ended the session, and with it the entry: enters again."""
        if self._returning is None or self._returning.done():
            work = self._return()
            self._returning = self.loop.create_task(work, context=contextvars.Context())

    async def _return(self) -> None:
        delay = _FIRST_TRY_SECONDS
        while True:
            directory = self.directory
            try:
                if directory.state == "closed":
                    directory = self.client.others.directory = await self.client.others.again(directory)
                await self._enter(directory, self.member.id)
            except PsError as error:
                _log.warning("%s is not in the directory at %s: %s", self.name, directory.address, error)
            except Exception:
                # If this task ended, no member would find this one again.
                _log.exception("%s could not enter the directory at %s", self.name, directory.address)
            else:
                _log.info("%s has entered the directory at %s again", self.name, directory.address)
                return
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_TRY_SECONDS)

    async def leave(self, drain_seconds: float) -> None:
        """Closes the client, drains the owner, and stops. The member with the directory waits until others have left.

        An owner that will continue from a checkpoint does not wait for others to leave: they will find it again.

        Raises:
            CheckpointError: It could not be written; the owner has stopped nevertheless.
        """
        if self.engine.durable:
            # Passes that finish here may still call other members.
            await self.server.quiet(drain_seconds)
        elif self.keeps_directory:
            wait = self.engine.directory.alone(self.name)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(drain_seconds, _LAST_ONE_SECONDS)):
                    await asyncio.wrap_future(wait.future)
        try:
            await self._close_client()
        finally:
            await self.server.drain(drain_seconds)

    async def withdraw(self) -> None:
        """Undoes a `join` that failed, and stops the owner without a checkpoint."""
        try:
            await self._close_client()
        finally:
            await self.server.stop()

    async def _close_client(self) -> None:
        if self._returning is not None:
            self._returning.cancel()
        await self.client.close()

    @property
    def timeout(self) -> float | None:
        """Default timeout of calls, in seconds; None is no limit."""
        return self._settings.timeout

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self._settings.timeout = seconds

    @property
    def session_here(self) -> Session:
        """The session with the owner of this process."""
        return self.client.session(self.name)

    @property
    def directory(self) -> Session:
        """The session with the owner that keeps the directory."""
        session = self.client.others.directory
        assert session is not None, "it has joined"
        return session

    # Members

    def worker(self, who: str | int | WorkerInfo) -> WorkerInfo:
        """A member, by name or number.

        Raises:
            RuntimeError: The directory has no such member.
            InvalidArgumentError: `who` is neither a name, a number nor a `WorkerInfo`.
        """
        if isinstance(who, WorkerInfo):
            return who
        if not isinstance(who, (str, int)) or isinstance(who, bool):
            raise InvalidArgumentError(
                f"a member is given by name, number or WorkerInfo, not by a {type(who).__name__}"
            )
        known = self._workers.get(who) if isinstance(who, str) else None
        if known is None:
            request = LookupRequest(name=who) if isinstance(who, str) else LookupRequest(id=who)
            try:
                member = self.client.others.ask(self.directory, request).wait()
            except PsError as error:
                raise RuntimeError(f"could not find destination: unknown member {who!r}: {error}") from error
            known = self._workers[member.name] = WorkerInfo(member.name, member.id)
        return known

    def session(self, who: str | int | WorkerInfo) -> Session:
        """The session with a member; opens one if there is none."""
        name = who if isinstance(who, str) else self.worker(who).name
        session = self.client.sessions.get(name)
        if session is not None and session.state != "closed":
            return session
        return Pending.run(self.loop, self.client.reach(name)).wait()

    # Calls

    def seconds(self, timeout: float) -> float | None:
        """Converts a timeout of this package into one of the client.

        Args:
            timeout: Seconds; 0 for no limit, -1 for the default.

        Raises:
            TypeError: It is no number.
        """
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
            raise TypeError(f"a time-out is a number of seconds, not a {type(timeout).__name__}")
        if timeout == UNSET:
            return self.timeout
        return None if timeout == 0 else float(timeout)

    def outstanding(self, pending: Pending[T]) -> Pending[T]:
        """Adds a call to those that `finish` waits for, and returns it."""
        with self._lock:
            self._outstanding.add(pending)
        return pending

    def future(self, pending: Pending[Any]) -> Future[Any]:
        """A future for a call, which `finish` waits for."""
        return Future(self.outstanding(pending), wrapped)

    def finish(self, deadline: Callable[[], float]) -> None:
        """Waits for the answers to all calls of this process.

        Args:
            deadline: Returns the seconds that are left.

        Raises:
            DeadlineExceededError: They did not arrive in time.
        """
        with self._lock:
            outstanding = list(self._outstanding)
        for pending in outstanding:
            if not pending.done():
                try:
                    pending.wait(deadline())
                except DeadlineExceededError:
                    if not pending.done():
                        raise
                except Exception:
                    _log.debug("a call failed, and its result was not awaited", exc_info=True)

    def run_later(self, work: Callable[[], None]) -> None:
        """Runs a function in one of the owner's compute threads."""

        def run() -> Callable[[], None]:
            with suppress(Exception):
                work()
            return _nothing

        if self.engine.draining or self.loop.is_closed():
            work()  # there is no thread to run it any more
        else:
            self.loop.call_soon_threadsafe(self.engine.compute.submit, run)

    def publish(self, rref: HostedRRef) -> Handle:
        """A handle to a value of this process, to be sent to others."""
        hosted = calls.hosted(self.engine, rref)
        session = self.session_here
        attach = AttachRequest(handle=hosted.ref.to_message())
        handle = session.submit(
            Request(attach=attach), None, lambda reply, _: handle_from(session, reply.attach.object)
        ).wait()
        if rref.parameter and isinstance(handle, RemoteModule):
            return handle.parameter(rref.parameter)
        return handle


def _nothing() -> None:
    """Does nothing, on the event loop afterwards."""
