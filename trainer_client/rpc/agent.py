"""This process as a member of a group: an owner and a client on one event loop, and an entry in the directory."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ps_service.execution.periodic import Periodic
from ps_service.passes import calls
from ps_service.sessions.fence import BEAT_SECONDS
from ps_wire.errors import (
    RAN_OUT,
    DeadlineExceededError,
    DrainingError,
    InvalidArgumentError,
    UnavailableError,
    UnknownNameError,
)
from ps_wire.numbers import check_timeout
from ps_wire.runtime import tasks
from ps_wire.runtime.noop import noop
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import AttachRequest, Member, MembersRequest
from trainer_client.client import objects
from trainer_client.client.client import Client
from trainer_client.handles.handles import RemoteModule
from trainer_client.pending import Pending
from trainer_client.profiling.members import NO_NUMBER
from trainer_client.rpc.entry import Entry
from trainer_client.rpc.gradients import OwnGradients
from trainer_client.rpc.leased_entry import LeasedEntry
from trainer_client.rpc.numbers import Numbers, looked_up
from trainer_client.rpc.options import UNSET, DeviceMaps
from trainer_client.rpc.planning import Plan
from trainer_client.rpc.static_entry import StaticEntry
from trainer_client.rpc.waiting import Deadline, in_time, told, unanswered
from trainer_client.rpc.workers import WorkerInfo
from trainer_client.transport.channels import UnaryRequests
from trainer_client.transport.following import FollowingConnector
from trainer_client.transport.grpc_stream import GrpcConnector
from trainer_client.transport.in_process import MemoryConnector

if TYPE_CHECKING:
    from ps_service.group.directory import Wait
    from ps_service.group.peers import Peers
    from ps_service.hosting.references import RRef as HostedRRef
    from ps_service.server import Server
    from ps_wire.connections.connection import Connector
    from trainer_client.handles.references import RRef as Handle
    from trainer_client.session.session import Session
    from trainer_client.session.settings import Settings

_log = logging.getLogger(__name__)

T = TypeVar("T")

_TELL_SECONDS: Final = 3.0
"""Longest time for which the member with the directory stays, until all others know how the group has begun."""

_LAST_ONE_SECONDS: Final = 0.5
"""Least time that the member with the directory waits for others that leave, too: they may still need an answer."""


class Agent:
    """An owner, which listens already, and a client on one event loop. `entry` is None before it joins, and `together`,
    the names of the members that began together, in an open group. `unary` asks others without a session. One that is
    `leased` joins a group whose directory has several keepers. The directory of this process is that of its group, or
    has what others tell: then `_mirroring` is its entry."""

    def __init__(self, server: Server, settings: Settings, address: str = "", leased: bool = False) -> None:
        self.server = server
        self.engine = server.engine
        self.name = server.engine.name
        self.loop = asyncio.get_running_loop()
        self.settings = settings
        settings.members = self
        self.entry: Entry | None = None
        self._mirroring: LeasedEntry | StaticEntry | None = None
        self.together: tuple[str, ...] | None = None
        self.placement = DeviceMaps(None, None)
        self.keeps_directory = True
        self.address = address or server.address
        self._outstanding: weakref.WeakSet[Pending[Any]] = weakref.WeakSet()
        self.arrivals = itertools.count(1)
        self._lock = threading.Lock()
        self._workers: dict[str, WorkerInfo] = {}
        self._numbers = Numbers()
        self.unary = UnaryRequests(settings.tls, token=settings.token)
        self._beats: Periodic | None = None
        self._asking: asyncio.Task[None] | None = None
        here: Connector = MemoryConnector(server.servicer.serve)
        if leased:
            # The session with the own owner opens again although there was no lease for long.
            here = FollowingConnector(_here, lambda _: MemoryConnector(server.servicer.serve), self.name, here.address)
        self.client = Client([here], settings, partial(GrpcConnector, tls=settings.tls, token=settings.token))
        self.client.keep = partial(OwnGradients, self.engine)

    async def join(self, plan: Plan, peers: Peers) -> None:
        """Enters the group; raises as `init_rpc`. `peers` lets the code that this process hosts reach the others."""
        if plan.keepers:
            await self._mirror(LeasedEntry(self.server, self.address, plan.keepers, self.settings), plan, peers)
            return
        if plan.told is not None:
            self.client.others.find_address = plan.told.find
            await self._mirror(StaticEntry(self.server, self.address, plan.told), plan, peers)
            return
        await self.client.open()
        others = self.client.others
        chain = self.engine.incarnations
        starts = (chain.current, *chain.earlier) if self.engine.durable else ()
        entry = self.entry = Entry(self.name, self.address, others, plan, starts, self.server.replaced)
        while True:
            others.directory = (None if plan.keeps_directory else await entry.reach()) or self.session_here
            self.keeps_directory = plan.keeps_directory
            if plan.size and plan.keeps_directory:
                self.engine.directory.begin(plan.size)
            self.engine.membership.join(peers)
            try:
                members = await entry.make(others.directory)
                break
            except (DrainingError, UnavailableError) as error:
                if not await entry.may_meet_another(is_over=isinstance(error, DrainingError)):
                    raise
        if starts and not plan.keeps_directory:
            self._watch(entry)
        if not plan.keeps_directory:
            others.add(others.directory)
            directory = others.directory.address
            _log.info(
                "%s has joined the group with its directory at %s, as number %d", self.name, directory, entry.member.id
            )
        if plan.size:
            self.together = tuple(member.name for member in members)
            self._workers.update((member.name, WorkerInfo(member.name, member.id)) for member in members)
            others.addresses.update((member.name, member.address) for member in members)

    async def _mirror(self, entry: LeasedEntry | StaticEntry, plan: Plan, peers: Peers) -> None:
        """Enters a group of which the directory of this process has what others tell."""
        self._mirroring = entry
        await entry.begin(plan.seconds)
        await self.client.open()
        self.client.others.directory = self.session_here
        self.engine.membership.join(peers)

    def _watch(self, entry: Entry) -> None:
        """Has the owner ask the directory whether it was replaced, whenever it did not run for a while."""
        fence, handlers = self.engine.fence, self.server.servicer.session_handlers

        async def ask() -> None:
            await entry.confirm()
            if not self.engine.gate.why:
                fence.settle()

        def doubt() -> None:
            handlers.end_streams()
            self._asking = self.loop.create_task(ask(), context=contextvars.Context())

        fence.watch(doubt)
        self._beats = Periodic(BEAT_SECONDS, fence.beat, "a beat of the owner")
        self._beats.begin()

    async def leave(self, drain_seconds: float) -> None:
        """Closes the client, drains the owner, and stops. The member with the directory waits until others have left,
        but not if it will continue from a checkpoint: they will find it again. If that cannot be written, this raises
        `CheckpointError` when the owner has stopped."""
        if self.engine.durable:
            # Passes that finish here may still call other members.
            await self.server.quiet(drain_seconds)
        elif self.keeps_directory and self._mirroring is None:
            directory = self.engine.directory
            await _within(_TELL_SECONDS, directory.told(self.client.trainer))
            directory.close(f"{self.name}, which kept the directory, has left the group")
            await _within(max(drain_seconds, _LAST_ONE_SECONDS), directory.alone(self.name))
            if self.entry is not None and self.entry.plan.file is not None:
                # Members of an open group that are left would not meet those of a group that begins anew.
                alone = {each.name for each in directory.members()} <= {self.name}
                self.entry.plan.file.leave(over=alone or self.entry.plan.size > 0)
        try:
            await self._close_client()
        finally:
            try:
                await self.server.drain(drain_seconds)
            finally:
                await self._give_back()

    async def stop(self) -> None:
        """Closes the client, and stops the owner without a checkpoint: another has taken its place."""
        try:
            await self._close_client()
        finally:
            await self.server.stop()
            await self._give_back()

    async def _give_back(self) -> None:
        """Gives the name back to the keepers of the directory, if there are several. This owner has stopped."""
        if self._mirroring is not None:
            await self._mirroring.end()

    async def withdraw(self, why: BaseException) -> None:
        """Undoes a `join` that failed, and stops the owner without a checkpoint."""
        if self.keeps_directory and self._mirroring is None:
            self.engine.directory.give_up(f"{self.name!r}, which keeps the directory, has left: {why}")
            await _within(_TELL_SECONDS, self.engine.directory.told(self.client.trainer))
        await self.stop()

    async def _close_client(self) -> None:
        if self.entry is not None:
            self.entry.give_up()
        if self._beats is not None:
            await self._beats.end()
            self.engine.fence.watched = False
        if self._asking is not None:
            await tasks.end(self._asking)
        await self.unary.close()
        await self.client.close()

    @property
    def session_here(self) -> Session:
        """The session with the owner of this process."""
        return self.client.session(self.name)

    @property
    def member(self) -> Member:
        """What the directory says of it."""
        entry = self.entry or self._mirroring
        return Member(name=self.name) if entry is None else entry.member

    @property
    def number(self) -> int:
        """Its number in the group, for profiles."""
        return self.member.id

    @property
    def patience(self) -> float:
        """Seconds to wait for members that have not joined."""
        return Plan().seconds if self.entry is None else self.entry.plan.seconds

    @property
    def directory(self) -> Session:
        """The session with the owner that keeps the directory."""
        session = self.client.others.directory
        assert session is not None, "it has joined"
        return session

    # Members

    def worker(self, who: str | int | WorkerInfo, seconds: float = 0.0) -> WorkerInfo:
        """A member, by name or number. Raises `RuntimeError` if the directory has no such member, another `PsError` if
        it cannot be asked, and `DeadlineExceededError` if it does not answer within these seconds, or with 0 within the
        usual time."""
        if isinstance(who, WorkerInfo):
            return who
        if not isinstance(who, (str, int)) or isinstance(who, bool):
            raise InvalidArgumentError(
                f"a member is given by name, number or WorkerInfo, not by a {type(who).__name__}"
            )
        if isinstance(who, int) and not 0 <= who < 1 << 63:
            raise RuntimeError(f"could not find destination: unknown member {who}: the numbers of members begin at 0")
        name = who if isinstance(who, str) else self._name_of(who)
        known = None if name is None else self._workers.get(name)
        if known is not None and self._name_of(known.id) == name:
            return known
        return self._looked_up(who, seconds)

    def _name_of(self, number: int) -> str | None:
        """The member with a number; None if the directory has to be asked."""
        if self.together is not None:
            return self.together[number] if number < len(self.together) else None  # their numbers are their ranks
        return self._numbers.find(number, self.directory)

    def _looked_up(self, who: str | int, seconds: float = 0.0, waits: bool = False) -> WorkerInfo:
        """Asks the directory for a member; arguments as for `looked_up`, with 0 for as long as members are waited for.
        Raises as `worker`."""
        answer = looked_up(self.client.others, self.directory, who, self.name, seconds or self.patience, waits)
        try:
            member = Pending.run(self.loop, answer).wait()
        except UnknownNameError as error:
            raise RuntimeError(f"could not find destination: unknown member {who!r}: {error}") from error
        known = self._workers[member.name] = WorkerInfo(member.name, member.id)
        session = self.client.sessions.get(member.name)
        if session is not None:
            self._numbers.keep(member.id, session, self.directory)
        return known

    def workers(self) -> list[WorkerInfo]:
        """All members, in the order of their numbers."""
        request = Request(members=MembersRequest())
        members = self.directory.submit(request, None, lambda reply, _: list(reply.members.members)).wait()
        return [WorkerInfo(member.name, member.id) for member in members]

    def number_of(self, name: str) -> int:
        """Number of a member, for profiles: the last one that is known; -1 if finding it would block the event loop."""
        known = self._workers.get(name)
        if known is not None:
            return known.id
        return NO_NUMBER if asyncio._get_running_loop() is self.loop else self.worker(name).id

    def session(self, who: str | int | WorkerInfo, timeout: float = UNSET) -> Session:
        """The session with a member; opens one if there is none. A timeout of 0 is no limit, and -1 the default. In an
        open group, a member that has not joined is waited for, if it is given by its name. Raises as `rpc_sync`, and
        `InvalidArgumentError` if it has another device than its device map says."""
        name = who if isinstance(who, str) else self.worker(who, self.longest(timeout)).name
        session = self.client.sessions.get(name)
        if session is not None and session.state != "closed":
            return session
        seconds = self.longest(timeout)
        if self.together is None:
            self._looked_up(name, seconds, waits=True)
        elif name not in self._workers:
            self._looked_up(name, seconds)
        session = Pending.run(self.loop, self._reached(name, seconds)).wait()
        self._numbers.keep(self._workers[name].id, session, self.directory)
        self.placement.check(name, session.device)
        return session

    def longest(self, timeout: float) -> float:
        """Seconds for which a call with this timeout may look for its member."""
        return min(self.seconds(timeout) or self.patience, self.patience)

    async def _reached(self, name: str, seconds: float) -> Session:
        async with (
            in_time(seconds, lambda: f"{RAN_OUT}: {name!r} could not be reached within {seconds:.3g} s"),
            told(lambda: f"{self.name!r} calls {name!r}, which cannot be reached", Deadline(seconds)),
        ):
            return await self.client.others.reach(name)

    # Calls

    def seconds(self, timeout: float) -> float | None:
        """Converts a timeout of this package, where 0 is no limit and -1 the default, into one of the client."""
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
            raise TypeError(f"a time-out is a number of seconds, not a {type(timeout).__name__}")
        if timeout == UNSET:
            return self.settings.timeout
        check_timeout(timeout)
        return float(timeout) or None

    def outstanding(self, pending: Pending[T]) -> Pending[T]:
        """Adds a call to those that `finish` waits for, and returns it."""
        with self._lock:
            self._outstanding.add(pending)
        return pending

    def finish(self, deadline: Callable[[], float]) -> None:
        """Waits for the answers to all calls of this process, as many seconds as `deadline` says are left."""
        with self._lock:
            outstanding = list(self._outstanding)
        for pending in outstanding:
            if not pending.done():
                try:
                    pending.wait(deadline())
                except DeadlineExceededError:
                    if not pending.done():
                        raise DeadlineExceededError(f"shutdown: {unanswered(outstanding)}") from None
                except Exception:
                    _log.debug("a call failed, and its result was not awaited", exc_info=True)

    def run_later(self, work: Callable[[], None]) -> None:
        """Runs a function in one of the owner's compute threads."""

        def run() -> Callable[[], None]:
            with suppress(Exception):
                work()
            return noop

        if self.engine.draining or self.loop.is_closed():
            work()  # there is no thread to run it any more
        else:
            self.loop.call_soon_threadsafe(self.engine.compute.submit, run)

    def publish(self, rref: HostedRRef) -> Handle:
        """A handle to a value of this process, to be sent to others."""
        hosted = calls.hosted(self.engine, rref)
        handle = objects.attach(self.session_here, AttachRequest(handle=hosted.ref.to_message())).wait()
        if rref.parameter and isinstance(handle, RemoteModule):
            return handle.parameter(rref.parameter)
        return handle


async def _here() -> str:
    return MemoryConnector.address


async def _within(seconds: float, wait: Wait) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.wrap_future(wait.future)
