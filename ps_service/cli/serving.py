"""Runs an owner in this process until it is asked to stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from ps_service.cli.reloading import Watch, start_again
from ps_service.cli.stop_requests import StopRequests
from ps_service.group.static_members import StaticMembers
from ps_service.measures.audit_log import AuditLog
from ps_service.tables.preparing import compile_soon
from ps_service.training.torch_step import warm_soon
from ps_wire.errors import PsError
from ps_wire.runtime.noop import noop
from ps_wire.shared_memory import descriptors
from trainer_client.rpc.joining import join
from trainer_client.session.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ps_service.config import OwnerConfig
    from ps_service.server import Server
    from trainer_client.rpc.agent import Agent

_log = logging.getLogger(__name__)

_STOP_SECONDS: Final = 1.0
"""Seconds that stopping may take once the checkpoint is written."""


_TELL_SECONDS: Final = 2.0
"""Seconds for which an owner that was replaced still tells its trainers so."""

_CHANGED: Final = 2
"""The place of the watch among what ends an owner."""

_MOST_NAMES: Final = 10
"""Most names of objects in one line."""


def run(server: Server, settings: OwnerConfig, watch: Watch | None = None) -> None:
    """Runs an owner until it is asked to stop, and drains it. With a `watch` it does so also if a file has changed, and
    starts the process again. Raises `OSError` if it cannot start or join its group, or if a later start of its state
    has taken its place there."""
    again: Callable[[], None] | None = None
    descriptors.raise_limit()
    events = server.engine.events
    events.audit = AuditLog(settings.audit_log, settings.name) if settings.audit_log else None
    try:
        again = _runner()(_serve(server, settings, watch))
    finally:
        if events.audit is not None:
            events.audit.close()
    if again is not None:
        again()


async def _serve(server: Server, settings: OwnerConfig, watch: Watch | None) -> Callable[[], None] | None:
    """Returns what starts the process again, if a file has changed."""
    # What has been imported lives as long as the process. A full collection would look at all of it, with torch for
    # 0.2 to 0.7 s, in which no call is answered. What a checkpoint brings comes later, because it may be deleted.
    gc.freeze()
    stop = StopRequests(settings.name)
    told = StaticMembers(settings.name) if settings.is_told else None
    if settings.until_eof or told is not None:
        stop.watch_input(None if told is None else told.hear)
    server.engine.membership.awaited = bool(settings.directory)
    if settings.keepers:
        server.engine.fence.lease(noop)  # until it has joined
    replaced = asyncio.Event()
    server.when_replaced = replaced.set
    # One that waits for its data directory, or for its group, may be asked to stop.
    if not await _done(asyncio.create_task(server.start()), stop, lambda: server.is_waiting):
        return None
    joining = asyncio.create_task(_join(server, settings, told))
    if not await _done(joining, stop, lambda: True):
        return None
    member = joining.result()
    _tell(server, settings.name)
    if settings.data_dir is None:
        _log.info(
            "%s has no --data-dir: what it holds is lost when it stops. --data-dir FOLDER keeps it", settings.name
        )
    warm_soon()
    if settings.compile_tables:
        compile_soon(has_tables=bool(server.engine.object_counts.tables))
    ends = [stop.wait(), replaced.wait(), *([] if watch is None else [watch.wait()])]
    again = _again(server, settings, watch, stop) if await _first(*ends) == _CHANGED and watch is not None else None
    if settings.data_dir is None:
        _tell_lost(server)
    if server.engine.gate.why:
        await asyncio.sleep(_TELL_SECONDS)
    await _end(server, member, settings, again)
    return again


def _again(server: Server, settings: OwnerConfig, watch: Watch, stop: StopRequests) -> Callable[[], None]:
    """What starts the process again, at the same address, unless it was asked to stop meanwhile."""
    watch.tell(settings)
    address = ["--listen", server.address] if settings.listen.endswith(":0") else []

    def begin() -> None:
        if not stop.came:
            start_again(*address)

    return begin


async def _done(task: asyncio.Task[Any], stop: StopRequests, may_be_left: Callable[[], bool]) -> bool:
    """Waits for a task, and raises what it raises. Returns false if the owner is asked to stop meanwhile; the task is
    cancelled then, if it may be left."""
    await _first(asyncio.wait([task]), stop.wait())
    if stop.came and may_be_left():
        task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return False
    return True


async def _first(*each: Coroutine[Any, Any, object]) -> int:
    """The place of the one that has ended first; the others are cancelled."""
    running = [asyncio.create_task(one) for one in each]
    try:
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        return next(i for i, task in enumerate(running) if task.done())
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)


def _tell(server: Server, name: str) -> None:
    """Prints where the owner serves, for programs that read it. On a terminal the log has told it already."""
    if sys.stdout.isatty() and sys.stderr.isatty() and _log.isEnabledFor(logging.INFO):
        return
    print(f"{name} is serving on {server.address}", flush=True)
    if http := server.http_url:
        print(f"{name} serves a page at {http}/ and metrics at {http}/metrics", flush=True)


def _tell_lost(server: Server) -> None:
    """Says which named objects end with an owner that keeps none."""
    names = sorted(each.name for each in server.engine.registry.objects() if each.name)
    if not names:
        return
    left = len(names) - _MOST_NAMES
    listed = ", ".join(names[:_MOST_NAMES]) + (f" and {left:,} more" if left > 0 else "")
    _log.warning("%s has no --data-dir, so these objects are lost with it: %s", server.engine.name, listed)


async def _join(server: Server, settings: OwnerConfig, told: StaticMembers | None) -> Agent | None:
    """Makes the owner a member of a group, if one is configured."""
    if not settings.directory:
        return None
    directory = "" if settings.directory == "self" or settings.keepers or told is not None else settings.directory
    own = Settings(shared_memory=settings.shared_memory, direct=settings.direct_port != "off", tls=settings.peer_tls)
    own.token = settings.own_token_file
    try:
        return await join(server, own, directory, settings.advertise, keepers=settings.keepers, told=told)
    except PsError as error:
        raise OSError(f"cannot join the group at {settings.directory}: {error}") from error


async def _end(server: Server, member: Agent | None, settings: OwnerConfig, again: Callable[[], None] | None) -> None:
    """Drains an owner. One that was replaced is stopped, and raises `OSError`: the other one has its state and its name
    in the group."""
    why = server.engine.gate.why
    if why:
        server.kept.set()
    # Python waits for its threads at exit, and hosted code that never returns holds one.
    ended = threading.Event()
    patience = None if settings.data_dir is not None else settings.drain_seconds
    threading.Thread(target=_end_at_once, args=(server, patience, ended, again), daemon=True).start()
    try:
        if why:
            await (member or server).stop()
        elif member is not None:
            await member.leave(settings.drain_seconds)
        else:
            await server.drain(settings.drain_seconds)
    finally:
        ended.set()
    if why:
        raise OSError(why)


def _end_at_once(
    server: Server, patience: float | None, ended: threading.Event, again: Callable[[], None] | None
) -> None:
    server.kept.wait(patience)
    if ended.wait(_STOP_SECONDS):
        return
    _log.warning("hosted code is still running; the process ends without it")
    if (audit := server.engine.events.audit) is not None:
        audit.close()
    if again is not None:
        again()
    os._exit(2 if server.engine.gate.why else int(server.failed))


def _runner() -> Any:
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run
