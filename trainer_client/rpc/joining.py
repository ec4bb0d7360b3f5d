"""Joins a group, and leaves it."""

from __future__ import annotations

import atexit
import importlib
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_service.engine import Engine
from ps_service.functions.groups import Level
from ps_service.functions.offered import TorchFunctions
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server
from ps_wire import tracing
from ps_wire.errors import InvalidArgumentError, UnavailableError
from ps_wire.limits import MAX_SEGMENT_BYTES, Limits
from ps_wire.numbers import check_seconds
from trainer_client.client.portal import Portal
from trainer_client.rpc import current
from trainer_client.rpc.agent import Agent
from trainer_client.rpc.current import agent, has_agent, set_agent
from trainer_client.rpc.options import UNSET, RpcBackendOptions, checked_options, usable
from trainer_client.rpc.peers import GroupPeers
from trainer_client.rpc.planning import Plan, planned
from trainer_client.rpc.rendezvous import chosen, meet
from trainer_client.rpc.waiting import DAY, Deadline, in_time
from trainer_client.rpc.workers import check_name
from trainer_client.session.settings import Settings

if TYPE_CHECKING:
    from ps_service.group.keepers import KeeperAddress
    from ps_service.group.told_members import ToldMembers

Offer = str | ModuleType | type | Callable[..., Any]

_ANYWHERE: Final = "127.0.0.1:0"

_SPARE_THREADS: Final = 64
"""Threads that replace those of calls that were given up and still run; each is made when it is needed.

One member may hold half of them. Programs for torch give up many calls that go on, because there later calls wait."""

_SECOND_KEEPER_SECONDS: Final = 5.0
"""Seconds that a second member of rank 0 waits for an answer from what listens at the address of rank 0."""

_portal: Portal | None = None
_lock = threading.Lock()


def init_rpc(
    name: str,
    backend: Any = None,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: RpcBackendOptions | None = None,
    *,
    directory: str = "",
    listen: str = "",
    advertise: str = "",
    allow: Iterable[Offer] = (),
    device: str | torch.device | None = None,
    timeout: float = UNSET,
    join_timeout: float = 60.0,
    lease_seconds: float = 30.0,
    shared_memory: bool = True,
    direct: bool = True,
    insecure: bool = False,
) -> None:
    """Joins a group: this process can then call the other members and be called by them.

    With `world_size`, the group begins as a whole, as in torch: this returns when all members have joined, or raises
    the same error in all of them. Otherwise the group is open: members join and leave at any time. One member keeps
    the directory of the group. Without `directory`, that is rank 0, at `MASTER_ADDR:MASTER_PORT` or at the address in
    `init_method`, or at one that rank 0 writes into the file of `init_method`.

    Args:
        name: Name of this process in the group: letters, digits, `_`, `.`, `:` and `-`.
        backend: A member of `BackendType`; there is only one backend.
        rank: The number of this process; optional with `directory`, and where the environment has it as `RANK`.
        world_size: Number of members of a group that begins as a whole.
        rpc_backend_options: Options by their names in torch.
        directory: Address of the owner that keeps the directory of an open group; `self` if this process does.
        listen: Host and port to listen on; empty for a free port of the loopback.
        advertise: Address under which others reach this process, if not `listen`.
        allow: Modules (or their names), classes and functions that others may call, in addition to those that the
            running program defines. Only marked classes and functions count (`@hosted`, `@remote`).
        device: Device of the modules and arguments in this process; None for the one of the options, or else the CPU.
        timeout: Default timeout of calls, in seconds; 0 is no limit.
        join_timeout: Seconds to wait for the directory, and for the other members.
        lease_seconds: Seconds that the session of another member outlives its connection.
        shared_memory: Whether to use shared memory with members on the same host.
        direct: Whether to use direct connections with members, which are faster than gRPC, where shared memory is not
            used.
        insecure: Whether to listen beyond loopback although traffic is not encrypted.

    Raises:
        RuntimeError: This process is in a group already.
        NameConflictError: The name or rank is not unique; in a group that begins as a whole, all members get this.
        DeadlineExceededError: Some members did not arrive in time; the message names those that did, and the others.
        UnavailableError: The directory cannot be reached in time.
        InvalidArgumentError: The name, the rank, an address or an entry of `allow` is not valid; the rank is missing;
            or not all members gave the same `world_size`.
        TypeError: The backend or its options are of another type.
    """
    options = checked_options(backend, rpc_backend_options)
    _check(name, rank, world_size)
    check_seconds("join_timeout", join_timeout)
    check_seconds("lease_seconds", lease_seconds)
    placement = options.placement()
    with _lock:
        if has_agent():
            raise RuntimeError(
                f"RPC is already initialized: this process is in a group already, as {agent().name!r}; "
                "call rpc.shutdown() first"
            )
        plan, listen = planned(options.init_method, rank, world_size or 0, directory, listen, join_timeout)
        try:
            default = options.rpc_timeout if timeout == UNSET else timeout
            settings = Settings(
                default or None, join_timeout or DAY, shared_memory=shared_memory, direct=direct, marks=True
            )
            settings.tracing = tracing.of_program(name)
            settings.member = name
            allowed = _allowed(allow)

            def begin(listen: str) -> Agent:
                """Starts an owner, whose engine is a new one: that of an owner which could not start is over."""
                engine = Engine(
                    name,
                    allowed,
                    device=usable(device or placement.here or "cpu"),
                    limits=Limits(
                        lease_seconds=lease_seconds, max_segment_bytes=MAX_SEGMENT_BYTES if shared_memory else 0
                    ),
                    threads=options.num_worker_threads,
                    spare_threads=_SPARE_THREADS,
                )
                if plan.size and plan.keeps_directory:
                    engine.directory.begin(plan.size)
                return _start(engine, listen, advertise, insecure, settings)

            taken: OSError | None = None
            try:
                made = begin(listen or _ANYWHERE)
            except OSError as error:
                if not plan.size or not plan.keeps_directory:
                    raise
                # Perhaps another process has this rank, too. If so, its directory tells all members.
                taken, plan = error, plan._replace(directory=listen)
                settings.connect_timeout = _SECOND_KEEPER_SECONDS
                made = begin(_ANYWHERE)
        except BaseException:
            if plan.file is not None:
                plan.file.leave(over=True)
            raise
        made.placement = placement
    try:
        _enter(made, plan)
    except UnavailableError as error:
        raise taken or error from None


async def join(
    server: Server,
    settings: Settings,
    directory: str = "",
    address: str = "",
    id: int | None = None,
    keepers: Sequence[KeeperAddress] = (),
    told: ToldMembers | None = None,
) -> Agent:
    """Makes an owner, which has begun to listen, the member of this process in a group; raises as `init_rpc`. Without a
    `directory` it keeps that itself, or these `keepers` do, or it is `told` the members. An owner that cannot join is
    stopped, and writes no checkpoint."""
    settings.member = server.engine.name
    member = Agent(server, settings, address, leased=bool(keepers))
    try:
        await member.join(Plan(directory, id, is_owner=True, keepers=tuple(keepers), told=told), GroupPeers(member))
    except BaseException as error:
        await member.withdraw(error)
        raise
    set_agent(member)
    return member


def shutdown(graceful: bool = True, timeout: float = 0.0, *, group: Iterable[str] | None = None) -> None:
    """Leaves the group.

    Args:
        graceful: Whether to wait for the answers to all calls of this process, for calls that run in it, and, if the
            members began together, until all of them call `shutdown`.
        timeout: Seconds to wait in total; 0 is no limit.
        group: Names of the members to wait for, in an open group. With no limit, those that have not joined are waited
            for as long as `init_rpc` was allowed to wait.

    Raises:
        RuntimeError: This process is in no group.
        DeadlineExceededError: A member did not call `shutdown` in time, and the message names it; or a call did not
            end. This process has left nevertheless.
        UnavailableError: A member was lost, and the message names it; or the directory was. This process has left
            nevertheless.
        InvalidArgumentError: This process is not in `group`, and has not left.
    """
    check_seconds("timeout", timeout)
    leaving = agent()
    members = chosen(leaving, group)
    deadline = Deadline(timeout)
    try:
        if graceful:
            leaving.finish(deadline.left)
            if members is not None:
                meet(leaving, members, "shutdown", deadline, leaving=True)
            # The last calls of other members may call further members.
            assert _portal is not None
            _portal.run(_settled(leaving, deadline.left()))
            leaving.finish(deadline.left)
            if members is not None:
                meet(leaving, members, "shutdown for good", deadline, leaving=True)
    finally:
        _end(leaving.leave(min(deadline.left(), 5.0) if graceful and members is not None else 0.0))


def _check(name: str, rank: int, world_size: int | None) -> None:
    check_name(name)
    if not isinstance(rank, int) or isinstance(rank, bool):
        raise TypeError(f"rank is a number, not a {type(rank).__name__}")
    if rank < -1:
        raise InvalidArgumentError(f"rank {rank} is negative; leave it out, or give one from 0")
    of_environment = rank == -1 and "RANK" in os.environ
    if world_size is not None and not of_environment and not 0 <= rank < world_size:
        raise InvalidArgumentError(f"rank {rank} is not one of {world_size}; give rank= beside world_size=")


def _allowed(offers: Iterable[Offer]) -> AllowList:
    allowed = AllowList(functions=TorchFunctions(Level.ALL))
    import __main__ as program

    with suppress(ValueError):  # it need not define anything that others may call
        allowed.add(program)
    for offer in (*current.offers, *offers):
        if isinstance(offer, str):
            allowed.add(importlib.import_module(offer))
        elif isinstance(offer, ModuleType):
            allowed.add(offer)
        else:
            allowed.allow(offer)
    return allowed


def _start(engine: Engine, listen: str, advertise: str, insecure: bool, settings: Settings) -> Agent:
    """Starts the owner of this process, and makes it the agent. Others may call it as soon as it has entered."""
    global _portal

    async def start() -> Agent:
        server = Server(engine, listen, insecure, direct_port=0 if settings.direct else "off")
        await server.start()
        try:
            return Agent(server, settings, advertise or _advertised(server.address))
        except BaseException:
            await server.stop()
            raise

    _portal = Portal.acquire()
    try:
        made = _portal.run(start())
    except BaseException:
        _portal.release()
        _portal = None
        raise
    set_agent(made)
    atexit.register(_at_exit)
    return made


def _enter(made: Agent, plan: Plan) -> None:
    """Enters the group; this process is in none again if that fails."""
    assert _portal is not None
    try:
        if plan.keeps_directory and plan.store is not None:
            plan.store.tell(made.address)
        if plan.keeps_directory and plan.file is not None:
            plan.file.publish(made.address, plan.size)
        _portal.run(made.join(plan, GroupPeers(made)))
    except BaseException as error:
        _end(made.withdraw(error))
        if plan.file is not None:
            plan.file.leave(over=True)
        raise


async def _settled(leaving: Agent, seconds: float) -> None:
    async with in_time(seconds, lambda: "shutdown: calls of other members are still running here"):
        await leaving.server.servicer.settled()


def _end(work: Coroutine[Any, Any, None]) -> None:
    """Leaves the group with a coroutine; this process is in none from now on."""
    global _portal
    with _lock:
        portal, _portal = _portal, None
        set_agent(None)
        atexit.unregister(_at_exit)
    if portal is None:
        work.close()
        return
    try:
        portal.run(work)
    finally:
        portal.release()


def _at_exit() -> None:
    """Leaves the group of a program that ends without `shutdown`, so that the other members do not wait for it."""
    if _portal is not None and has_agent():
        with suppress(RuntimeError):
            _portal.run(agent().client.close())


def _advertised(address: str) -> str:
    host, _, port = address.rpartition(":")
    if host.strip("[]") not in ("0.0.0.0", "::"):
        return address
    try:
        return f"{socket.gethostbyname(socket.gethostname())}:{port}"
    except OSError as error:
        raise InvalidArgumentError(f"this host does not know its own address ({error}); give advertise=") from error
