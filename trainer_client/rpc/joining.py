"""Joins a group, and leaves it."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_service.access.token_file import TokenFile
from ps_wire import tracing
from ps_wire.errors import InvalidArgumentError, UnavailableError
from ps_wire.numbers import check_seconds
from ps_wire.tls import TLS
from ps_wire.tokens import metadata_of, of_variables
from trainer_client.client.portal import Portal
from trainer_client.rpc.agent import Agent
from trainer_client.rpc.current import agent, has_agent, set_agent
from trainer_client.rpc.options import UNSET, RpcBackendOptions, checked_options
from trainer_client.rpc.own_owner import Offer, OwnOwner, allowing
from trainer_client.rpc.peers import GroupPeers
from trainer_client.rpc.planning import Plan, planned
from trainer_client.rpc.rendezvous import chosen, meet
from trainer_client.rpc.waiting import DAY, Deadline, in_time
from trainer_client.rpc.workers import check_name
from trainer_client.session.settings import Settings

if TYPE_CHECKING:
    from ps_service.group.keepers import KeeperAddress
    from ps_service.group.static_members import StaticMembers
    from ps_service.server import Server

_ANYWHERE: Final = "127.0.0.1:0"

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
    tls: TLS | None = None,
    token: str | Path | None = None,
    token_file: str | Path | None = None,
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
        allow: Modules (or their names), classes and functions that others may call, or one, in addition to those that
            the running program defines. Only marked classes and functions count (`@hosted`, `@remote`).
        device: Device of the modules and arguments in this process; None for the one of the options, or else the CPU.
        timeout: Default timeout of calls, in seconds; 0 is no limit.
        join_timeout: Seconds to wait for the directory, and for the other members.
        lease_seconds: Seconds that the session of another member outlives its connection.
        shared_memory: Whether to use shared memory with members on the same host.
        direct: Whether to use direct connections with members, which are faster than gRPC, where shared memory is not
            used.
        tls: The certificate with which this process serves and calls others, over TLS. With `ca`, it answers only those
            that have one of that authority. None takes those that the variables `PS_TLS_CA`, `PS_TLS_CERT`,
            `PS_TLS_KEY` and `PS_TLS_SERVER_NAME` name; without any, nothing is encrypted.
        token: The token with which this process shows other members who it is, or the path of a file that has it. None
            takes that of the variable `PS_TOKEN`, or of the file that `PS_OWN_TOKEN_FILE` names.
        token_file: The file of the identities that this process answers, as `ps-service token add` makes it. Members
            need the role `owner` with each other. Without one, it answers everybody.
        insecure: Whether to listen beyond loopback although traffic is not encrypted.

    Raises:
        RuntimeError: This process is in a group already.
        NameConflictError: The name or rank is not unique; in a group that begins as a whole, all members get this.
        DeadlineExceededError: Some members did not arrive in time; the message names those that did, and the others.
        UnavailableError: The directory cannot be reached in time.
        InvalidArgumentError: The name, the rank, an address or an entry of `allow` is not valid; the rank is missing;
            `tls` has no certificate, or a file of it cannot be used, or one of tokens; or not all members gave the same
            `world_size`.
        UnauthenticatedError: The directory asks for a token, and has got none that it knows.
        PermissionDeniedError: The identity of this process has not the role `owner` there.
        TypeError: The backend or its options, the rank or the number of members are of another type.
    """
    options = checked_options(backend, rpc_backend_options)
    _check(name, rank, world_size)
    check_seconds("join_timeout", join_timeout)
    check_seconds("lease_seconds", lease_seconds)
    token = token or of_variables()
    metadata_of(token)
    identities = None if token_file is None else TokenFile(Path(token_file))
    settings = Settings(
        (options.rpc_timeout if timeout == UNSET else timeout) or None,
        join_timeout or DAY,
        shared_memory=shared_memory,
        direct=direct,
        marks=True,
        member=name,
        tls=tls or TLS.of_variables(),
        token=token,
        tracing=tracing.of_program(name),
    )
    placement, threads = options.placement(), options.num_worker_threads
    own = OwnOwner(
        allowing(allow), settings, placement, device, threads, lease_seconds, advertise, identities, insecure
    )
    with _lock:
        _check_alone()
        plan, listen = planned(options.init_method, rank, world_size or 0, directory, listen, join_timeout)
        made, plan, taken = _begun(own, plan, listen)
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
    told: StaticMembers | None = None,
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


def _check_alone() -> None:
    if has_agent():
        raise RuntimeError(
            f"RPC is already initialized: this process is in a group already, as {agent().name!r}; "
            "call rpc.shutdown() first"
        )


def _check(name: str, rank: int, world_size: int | None) -> None:
    check_name(name)
    if not isinstance(rank, int) or isinstance(rank, bool):
        raise TypeError(f"rank is a number, not a {type(rank).__name__}")
    if world_size is not None and (not isinstance(world_size, int) or isinstance(world_size, bool)):
        raise TypeError(f"world_size is a number, not a {type(world_size).__name__}")
    if rank < -1:
        raise InvalidArgumentError(f"rank {rank} is negative; leave it out, or give one from 0")
    of_environment = rank == -1 and "RANK" in os.environ
    if world_size is not None and not of_environment and not 0 <= rank < world_size:
        raise InvalidArgumentError(f"rank {rank} is not one of {world_size}; give rank= beside world_size=")


def _begun(own: OwnOwner, plan: Plan, listen: str) -> tuple[Agent, Plan, OSError | None]:
    """Starts the owner of this process. If its address is taken, perhaps another process has this rank, too: then its
    directory tells all members, and the error is for the case that there is none."""
    try:
        try:
            return _start(own, plan, listen or _ANYWHERE), plan, None
        except OSError as error:
            if not plan.size or not plan.keeps_directory:
                raise
            plan = plan._replace(directory=listen)
            own.settings.connect_timeout = _SECOND_KEEPER_SECONDS
            return _start(own, plan, _ANYWHERE), plan, error
    except BaseException:
        if plan.file is not None:
            plan.file.leave(over=True)
        raise


def _start(own: OwnOwner, plan: Plan, listen: str) -> Agent:
    """Starts the owner of this process, and makes it the agent. Others may call it as soon as it has entered."""
    global _portal

    server = own.server(listen, plan.size if plan.keeps_directory else 0)

    async def start() -> Agent:
        await server.start()
        try:
            return Agent(server, own.settings, own.address(server.address))
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
    made.placement = own.placement
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
