"""Joins a group, and leaves it."""

from __future__ import annotations

import asyncio
import atexit
import importlib
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import ModuleType
from typing import Any, Final

import torch

from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server
from ps_wire.errors import DeadlineExceededError, InvalidArgumentError, NameConflictError
from ps_wire.limits import MAX_SEGMENT_BYTES, Limits
from trainer_client.client.portal import Portal
from trainer_client.rpc.agent import Agent
from trainer_client.rpc.current import agent, has_agent, set_agent
from trainer_client.rpc.options import UNSET, RpcBackendOptions, master_address
from trainer_client.rpc.rendezvous import Deadline, Group, gathered
from trainer_client.session.settings import Settings

Offer = str | ModuleType | type | Callable[..., Any]

_LONGEST_NAME: Final = 128
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
    device: str = "cpu",
    timeout: float = UNSET,
    join_timeout: float = 60.0,
    lease_seconds: float = 30.0,
    shared_memory: bool = True,
    direct: bool = True,
    insecure: bool = False,
) -> None:
    """Joins a group: this process can then call the other members and be called by them.

    With `directory`, the group is open: members join and leave at any time. With `world_size` it is as in torch: rank 0
    keeps the directory at `MASTER_ADDR:MASTER_PORT` (or at the address in `init_method`), and this returns when all
    members have joined. With neither, this process keeps the directory of an open group.

    Args:
        name: Name of this process in the group: letters, digits, `_`, `.` and `-`.
        backend: Ignored; there is only one.
        rank: The number of this process; optional in an open group.
        world_size: Number of members of the group.
        rpc_backend_options: Options by their names in torch.
        directory: Address of the owner that keeps the directory.
        listen: Host and port to listen on; empty for a free port of the loopback.
        advertise: Address under which others reach this process, if not `listen`.
        allow: Modules (or their names), classes and functions that others may call, in addition to those that the
            running program defines. Only marked classes and functions count (`@hosted`, `@remote`).
        device: Device of the modules and arguments in this process.
        timeout: Default timeout of calls, in seconds; 0 is no limit.
        join_timeout: Seconds to wait for the directory, and for the other members.
        lease_seconds: Seconds that the session of another member outlives its connection.
        shared_memory: Whether to use shared memory with members on the same host.
        direct: Whether to use direct connections with members, which are faster than gRPC, where shared memory is not
            used.
        insecure: Whether to listen beyond loopback although traffic is not encrypted.

    Raises:
        RuntimeError: This process is in a group already, or the name or number is taken.
        DeadlineExceededError: Some members did not arrive in time; the message names those that did.
        UnavailableError: The directory cannot be reached in time.
        InvalidArgumentError: The name, the rank, an address or an entry of `allow` is not valid.
    """
    options = rpc_backend_options or RpcBackendOptions()
    if not isinstance(options, RpcBackendOptions):
        raise TypeError(f"rpc_backend_options must be RpcBackendOptions, not a {type(options).__name__}")
    _check(name, rank, world_size)
    with _lock:
        if has_agent():
            raise RuntimeError(
                f"RPC is already initialized: this process is in a group already, as {agent().name!r}; "
                "call rpc.shutdown() first"
            )
        in_torchs_way = world_size is not None and not directory
        if in_torchs_way:
            master = master_address(options.init_method)
            listen, directory = (listen or master, "") if rank == 0 else (listen, master)
        default = options.rpc_timeout if timeout == UNSET else timeout
        settings = Settings(default or None, join_timeout or 86_400.0, shared_memory=shared_memory, direct=direct)
        engine = Engine(
            name,
            _allowed(allow),
            device=torch.device(device),
            limits=Limits(lease_seconds=lease_seconds, max_segment_bytes=MAX_SEGMENT_BYTES if shared_memory else 0),
            threads=options.num_worker_threads,
        )
        made = _start(engine, listen or "127.0.0.1:0", advertise, insecure, settings, directory, rank)
    if in_torchs_way and world_size is not None:
        try:
            made.group = gathered(made, world_size, join_timeout)
        except BaseException:
            shutdown(graceful=False)
            raise


async def join(
    server: Server, settings: Settings, directory: str = "", address: str = "", id: int | None = None
) -> Agent:
    """Makes an owner a member of a group, as the member of this process.

    An owner that cannot join is stopped. It writes no checkpoint, because it has served no requests.

    Args:
        server: The owner, which has begun to listen.
        settings: Timeouts of its client.
        directory: Address of the owner that keeps the directory; empty for this process's own directory.
        address: Address under which others reach the owner; empty for the address that it listens on.
        id: The rank to enter with; None for a free number.

    Raises:
        UnavailableError: The directory cannot be reached in time.
        NameConflictError: The name or number is taken.
    """
    member = Agent(server, settings, address)
    try:
        await member.join(directory, id)
    except BaseException:
        await member.withdraw()
        raise
    set_agent(member)
    return member


def shutdown(graceful: bool = True, timeout: float = 0.0, *, group: Iterable[str] | None = None) -> None:
    """Leaves the group.

    Args:
        graceful: Whether to wait for the answers to all calls of this process, for calls that run in it, and, if the
            members began together, until all of them call `shutdown`.
        timeout: Seconds to wait in total; 0 is no limit.
        group: Names of the members to wait for, in an open group.

    Raises:
        RuntimeError: This process is in no group.
        DeadlineExceededError: A member did not call `shutdown` in time, and the message names it; or a call did not
            end. This process has left nevertheless.
        InvalidArgumentError: This process is not in `group`, and has not left.
    """
    leaving = agent()
    members = Group(leaving, group) if group is not None else leaving.group
    deadline = Deadline(timeout)
    try:
        if graceful:
            leaving.finish(deadline.left)
            if members is not None:
                members.rendezvous("shutdown", deadline.left())
            # The last calls of other members may call further members.
            _run(leaving.server.servicer.settled(), deadline.left())
            leaving.finish(deadline.left)
            if members is not None:
                members.rendezvous("shutdown for good", deadline.left())
    finally:
        _stop(leaving, min(deadline.left(), 5.0) if graceful and members is not None else 0.0)


def _check(name: str, rank: int, world_size: int | None) -> None:
    if not isinstance(name, str) or not name.replace("_", "").replace(".", "").replace("-", "").isalnum():
        raise InvalidArgumentError(f"the name of a member has only letters, digits, '_', '.' and '-', unlike {name!r}")
    if len(name) > _LONGEST_NAME:
        raise InvalidArgumentError(
            f"the name of a member has at most {_LONGEST_NAME} characters; {name[:20]}… has {len(name)}"
        )
    if world_size is not None and not 0 <= rank < world_size:
        raise InvalidArgumentError(f"rank {rank} is not one of {world_size}; give rank= beside world_size=")


def _allowed(offers: Iterable[Offer]) -> AllowList:
    allowed = AllowList()
    import __main__ as program

    with suppress(ValueError):  # it need not define anything that others may call
        allowed.add(program)
    for offer in offers:
        if isinstance(offer, str):
            allowed.add(importlib.import_module(offer))
        elif isinstance(offer, ModuleType):
            allowed.add(offer)
        else:
            allowed.allow(offer)
    return allowed


def _start(
    engine: Engine, listen: str, advertise: str, insecure: bool, settings: Settings, directory: str, rank: int
) -> Agent:
    global _portal

    async def start() -> Agent:
        server = Server(engine, listen, insecure, direct_port=0 if settings.direct else "off")
        await server.start()
        address = advertise or _advertised(server.address)
        return await join(server, settings, directory, address, rank if rank >= 0 else None)

    _portal = Portal.acquire()
    try:
        made = _portal.run(start())
    except BaseException as error:
        _portal.release()
        _portal = None
        if isinstance(error, NameConflictError):
            raise RuntimeError(str(error)) from error
        raise
    atexit.register(_at_exit)
    return made


def _run(work: Any, seconds: float) -> None:
    async def within() -> None:
        try:
            async with asyncio.timeout(seconds):
                await work
        except TimeoutError:
            raise DeadlineExceededError("shutdown: calls of other members are still running here") from None

    assert _portal is not None
    _portal.run(within())


def _stop(leaving: Agent, drain_seconds: float) -> None:
    global _portal
    with _lock:
        portal, _portal = _portal, None
        set_agent(None)
        atexit.unregister(_at_exit)
    if portal is not None:
        try:
            portal.run(leaving.leave(drain_seconds))
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
