"""Joins a group, as `init_rpc` of torch does, and leaves it."""

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
from ps_wire.errors import DeadlineExceededError, InvalidArgumentError, NameConflictError, PsError
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
    insecure: bool = False,
) -> None:
    """Joins a group: from now on this process can be called, and can call the others.

    With `directory`, the group is open: members come and go as they like. With `world_size` it is as in torch: number 0
    keeps the directory at `MASTER_ADDR:MASTER_PORT` (or where `init_method` says), and this returns when all are there.
    With neither, this process keeps the directory of an open group.

    Args:
        name: Name of this process in the group: letters, digits, `_`, `.` and `-`.
        backend: Ignored: there is one.
        rank: The number of this process; in an open group it may be left out.
        world_size: How many members the group has.
        rpc_backend_options: Options by their names in torch.
        directory: Address of any owner that keeps the directory.
        listen: Host and port at which this process can be called; a free port of the loopback if empty.
        advertise: Address at which others find it, if that is another.
        allow: What others may call here besides everything in the running program with `@hosted` or `@remote`:
            modules (or their names), classes and functions, each of which wears its mark.
        device: Where modules and arguments live here.
        timeout: Seconds a call may take by default; 0 for as long as it takes.
        join_timeout: Seconds to wait for the directory, and for the others.
        lease_seconds: How long what another member holds here outlives its connection.
        shared_memory: Whether to use shared memory with members on the same host.
        insecure: Listen beyond loopback although traffic is not encrypted.

    Raises:
        RuntimeError: This process is in a group already, or the name or number is taken.
        DeadlineExceededError: Some members did not come in time; it says who is there.
        UnavailableError: The directory cannot be reached in time.
        ValueError: The name, an address or an offer does not fit.
    """
    options = rpc_backend_options or RpcBackendOptions()
    if not isinstance(options, RpcBackendOptions):
        raise TypeError(f"rpc_backend_options are RpcBackendOptions, not a {type(options).__name__}")
    _check(name, rank, world_size)
    with _lock:
        if has_agent():
            raise RuntimeError(f"this process is in a group already, as {agent().name!r}: call rpc.shutdown() first")
        in_torchs_way = world_size is not None and not directory
        if in_torchs_way:
            master = master_address(options.init_method)
            listen, directory = (listen or master, "") if rank == 0 else (listen, master)
        default = options.rpc_timeout if timeout == UNSET else timeout
        settings = Settings(default or None, join_timeout or 86_400.0, shared_memory=shared_memory)
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
    """Makes an owner a member of a group; from then on it is the member that this process is.

    An owner that cannot join is stopped. It writes no checkpoint, because it has served no requests.

    Args:
        server: The owner, which has begun to listen.
        settings: How patient its client is.
        directory: Address of the owner that keeps the group's directory; this one's own if empty.
        address: Where others find the owner; where it listens, if empty.
        id: The number to have; one that is free if None.

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
        graceful: Waits for the answers to all calls made here, for those running here, and, if the members began
            together, for all others to come here too.
        timeout: Seconds for all of that; 0 for as long as it takes.
        group: Names of the members to wait for, in an open group.

    Raises:
        RuntimeError: This process is in no group.
        DeadlineExceededError: Somebody did not come in time, and it says who; or a call did not end. This process has
            left all the same.
        InvalidArgumentError: This process is not in `group`, and has not left.
    """
    leaving = agent()
    meeting = Group(leaving, group) if group is not None else leaving.group
    deadline = Deadline(timeout)
    try:
        if graceful:
            leaving.finish(deadline.left)
            if meeting is not None:
                meeting.rendezvous("shutdown", deadline.left())
            # What the others have asked for last may call on in turn.
            _run(leaving.server.servicer.settled(), deadline.left())
            leaving.finish(deadline.left)
            if meeting is not None:
                meeting.rendezvous("shutdown for good", deadline.left())
    finally:
        _stop(leaving, min(deadline.left(), 5.0) if graceful and meeting is not None else 0.0)


def _check(name: str, rank: int, world_size: int | None) -> None:
    if not isinstance(name, str) or not name.replace("_", "").replace(".", "").replace("-", "").isalnum():
        raise ValueError(f"a member's name is made of letters, digits, '_', '.' and '-', and {name!r} is not")
    if len(name) > _LONGEST_NAME:
        raise ValueError(f"a member's name has at most {_LONGEST_NAME} characters, and {name[:20]}… has {len(name)}")
    if world_size is not None and not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not one of {world_size}; give rank= beside world_size=")


def _allowed(offers: Iterable[Offer]) -> AllowList:
    allowed = AllowList()
    import __main__ as program

    with suppress(ValueError):  # it need not offer anything
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
        server = Server(engine, listen, insecure)
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
            raise DeadlineExceededError("shutdown: what others have called here is still running") from None

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
    """A program that ends without leaving its group says goodbye, so that the others do not wait for it."""
    if _portal is not None and has_agent():
        with suppress(PsError, RuntimeError):
            _portal.run(agent().client.close())


def _advertised(address: str) -> str:
    host, _, port = address.rpartition(":")
    if host.strip("[]") not in ("0.0.0.0", "::"):
        return address
    try:
        return f"{socket.gethostbyname(socket.gethostname())}:{port}"
    except OSError as error:
        raise InvalidArgumentError(f"this host does not know its own address ({error}); give advertise=") from error
