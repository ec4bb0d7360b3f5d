"""Programs whose members leave, are lost, or have not joined, each a process of its own.

python -m tests.rpc.endings PROCESSES PROGRAM...

As in `tests.rpc.groups`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ps_service.requests.administration import evict_session
from ps_wire.errors import PsError, SessionLostError
from tests.rpc import groups
from tests.rpc import situations as s
from tests.rpc.beginnings import SECONDS, announce, path, process_that, when_it_waits
from tests.rpc.groups import news, tell, wait_for_news
from trainer_client import rpc
from trainer_client.rpc.current import agent


def joined(rank: int, size: int) -> None:
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size, join_timeout=SECONDS, lease_seconds=0.5)


def leave(rank: int, **options: float) -> None:
    """Leaves, and tells how."""
    try:
        rpc.shutdown(**options)
    except RuntimeError as error:
        tell(rank, type(error).__name__, error)
    else:
        tell(rank, "left")


def said(what: str) -> str:
    """What the process that has announced this has said in the log."""
    with open(path(what)) as file:
        return file.read().partition(" ")[2].partition("; it has waited")[0]


def killed_before_shutdown(rank: int, size: int) -> None:
    """One is killed between init and shutdown; the others hear of it, with no time limit."""
    joined(rank, size)
    if rank == 1:
        announce("killed")
        wait_for_news(99)
    if rank == 2:
        os.kill(process_that("killed"), signal.SIGKILL)
    leave(rank)


def killed_in_shutdown(rank: int, size: int) -> None:
    """One is killed while it waits in `shutdown`, and the others come later."""
    joined(rank, size)
    if rank == 1:
        when_it_waits("killed", "has called shutdown, and waits for worker")
    elif rank == 2:
        os.kill(process_that("killed"), signal.SIGKILL)
        news(2)
    else:
        wait_for_news(2)
    leave(rank)


def keeper_killed_in_shutdown(rank: int, size: int) -> None:
    """The member with the directory is killed while it waits in `shutdown`."""
    joined(rank, size)
    if rank == 0:
        when_it_waits("killed", "has called shutdown, and waits for worker")
    else:
        os.kill(process_that("killed"), signal.SIGKILL)
        when_it_waits("waits", "has called shutdown")
    leave(rank, timeout=0.0 if rank == 0 else 1.5)
    tell(rank, said("waits"))


def stopped(rank: int, size: int) -> None:
    """One is stopped before it calls `shutdown`. Another says that it waits for it, until it goes on."""
    joined(rank, size)
    if rank == 1:
        announce("stopped")
        wait_for_news(0)
    else:
        when_it_waits("waits", "has called shutdown, and waits for worker")
        os.kill(process_that("stopped"), signal.SIGSTOP)
        news(0)
        if not os.fork():
            process_that("waits")
            os.kill(process_that("stopped"), signal.SIGCONT)
            os._exit(0)
    leave(rank)
    if rank == 0:
        tell(rank, said("waits"))


def others_leave(rank: int, size: int) -> None:
    """The others leave without waiting; the member with the directory does not wait for them either."""
    joined(rank, size)
    if rank == 0:
        leave(rank)
    else:
        rpc.shutdown(graceful=False)
        tell(rank, "left at once")


def keeper_leaves(rank: int, size: int) -> None:
    """The member with the directory leaves without waiting, while the others wait."""
    joined(rank, size)
    if rank == 0:
        process_that("waits")
        rpc.shutdown(graceful=False)
        tell(rank, "left at once")
        return
    when_it_waits("waits", "has called shutdown, and waits for worker")
    leave(rank)


def joins_again(rank: int, size: int) -> None:
    """A member leaves after a barrier and joins again; then both meet once more."""
    both = ["worker0", "again"]
    if rank == 0:
        rpc.init_rpc("worker0", directory="self")
        groups.publish_directory(0)
        rpc.barrier(both, timeout=SECONDS)
        wait_for_news(1)
    else:
        rpc.init_rpc("again", directory=groups.published_directory())
        rpc.barrier(both, timeout=SECONDS)
        rpc.shutdown(graceful=False)
        rpc.init_rpc("again", directory=groups.published_directory())
        news(1)
    rpc.barrier(both, timeout=SECONDS)
    tell(rank, sorted(rpc.all_gather(rank, both, timeout=SECONDS).items()))
    rpc.shutdown(group=both, timeout=SECONDS)


def another_number(rank: int, size: int) -> None:
    """A member leaves, and joins again with another number."""
    if rank == 0:
        rpc.init_rpc("worker0", directory="self")
        groups.publish_directory(0)
        wait_for_news(1)
        rref = rpc.remote("again", torch.add, args=(1, 2))
        tell(rank, rref.to_here(), rref.owner(), rpc.get_worker_info("again"))
        news(0)
        wait_for_news(2)
        while agent().client.session("again").state == "connected":
            time.sleep(0.001)
        for use in (rref.owner, partial(rpc.get_worker_info, "again")):
            try:
                tell(rank, use())
            except RuntimeError as error:
                tell(rank, error)
        news(3)
        wait_for_news(4)
        tell(rank, rref.owner(), rpc.get_worker_info("again"))
    else:
        rpc.init_rpc("again", directory=groups.published_directory())
        news(1)
        wait_for_news(0)
        rpc.shutdown(graceful=False)
        news(2)
        wait_for_news(3)
        rpc.init_rpc("again", directory=groups.published_directory(), rank=7)
        news(4)
    rpc.shutdown(group=["worker0", "again"], timeout=SECONDS)


def replaced(rank: int, size: int) -> None:
    """One is stopped until the directory has given it up, and another joins under its name. Then it goes on."""
    both = ["worker0", "twice"]
    if rank == 0:
        rpc.init_rpc("worker0", directory="self")
        groups.publish_directory(0)
        process = process_that("stopped")
        kept = rpc.remote("twice", s.Keeper, args=(4,))
        tell(rank, rpc.rpc_sync("twice", s.whoami), kept.rpc_sync().value())
        os.kill(process, signal.SIGSTOP)
        lose("twice")
        news(0)
        wait_for_news(2)
        os.kill(process, signal.SIGCONT)
        wait_for_news(1)
        tell(rank, answer(partial(rpc.rpc_sync, "twice", s.whoami)), answer(kept.rpc_sync().value))
    elif rank == 1:
        rpc.init_rpc("twice", directory=groups.published_directory(), allow=[s])
        announce("stopped")
        wait_for_news(2)
        tell(rank, *(answer(partial(rpc.all_gather, "old", both, timeout=SECONDS)) for _ in range(2)))
        while not agent().engine.gate.why:
            time.sleep(0.001)
        news(1)
        leave(rank)
        return
    else:
        wait_for_news(0)
        rpc.init_rpc("twice", directory=groups.published_directory(), allow=[s], rank=7)
        news(2)
        wait_for_news(1)
    tell(rank, sorted(rpc.all_gather(rank, both, timeout=SECONDS).items()))
    rpc.shutdown(group=both, timeout=SECONDS)


def answer(ask: Callable[[], Any]) -> Any:
    """The answer, or the beginning of the error. At first that may be that a session was lost."""
    while True:
        try:
            return ask()
        except SessionLostError:
            continue
        except PsError as error:
            return f"{type(error).__name__} {str(error).partition(', at')[0].partition(' since')[0]}"


def told_of_the_lost(rank: int, size: int) -> None:
    """A call of a member that is killed, and one of its successor, which does not end either."""
    if rank == 1:
        rpc.init_rpc("twice", directory=groups.published_directory(), allow=[s])
        announce("first")
        wait_for_news(99)
    if rank == 2:
        wait_for_news(0)
        rpc.init_rpc("twice", directory=groups.published_directory(), allow=[s])
        news(2)
        process_that("leaving")
        s.let_go("nothing")
        rpc.shutdown(graceful=False)
        return
    rpc.init_rpc("worker0", directory="self")
    groups.publish_directory(0)
    first = process_that("first")
    call = rpc.rpc_async("twice", s.wait_for, args=("nothing",))
    rpc.rpc_sync("twice", s.begun, args=("nothing",))
    os.kill(first, signal.SIGKILL)
    lose("twice")
    news(0)
    wait_for_news(2)
    try:
        call.wait()
    except SessionLostError as error:
        tell(rank, str(error).partition("known. ")[2])
    rest = rpc.rpc_async("twice", s.wait_for, args=("nothing",))
    try:
        rpc.shutdown(timeout=0.2)
    except RuntimeError as error:
        tell(rank, error)
    announce("leaving")
    tell(rank, rest.done())


def given_up(rank: int, size: int) -> None:
    """The directory gives a member up that is there. It joins again by itself, and all meet and can call it."""
    joined(rank, size)
    if rank == 0:
        lose("worker1")
        while agent().engine.directory.find("worker1") is None:
            time.sleep(0.001)
        news(0)
    wait_for_news(0)
    rpc.barrier(timeout=SECONDS)
    tell(rank, rpc.rpc_sync("worker1", torch.add, args=(rank, 1), timeout=SECONDS))
    leave(rank, timeout=SECONDS)


def lose(name: str) -> None:
    """Has the directory of this process give a member up, as when its lease has run out, and waits until it has."""
    engine = agent().engine
    entry = engine.directory.find(name)
    assert entry is not None
    agent().loop.call_soon_threadsafe(evict_session, engine, entry.session.hex()[:8])
    while engine.directory.find(name) is entry:
        time.sleep(0.001)


def never_there(rank: int, size: int) -> None:
    """A member of an open group waits for one that never joins."""
    rpc.init_rpc("worker0", directory="self", join_timeout=1.0)
    try:
        rpc.shutdown(group=["worker0", "trainer1"])
    except RuntimeError as error:
        tell(rank, type(error).__name__, error)


def calls_before_the_other_joins(rank: int, size: int) -> None:
    """One calls a member that joins only once the other says that it waits for it."""
    if rank == 0:
        rpc.init_rpc("worker0", directory="self")
        groups.publish_directory(0)
        when_it_waits("waits", "calls 'late'")
        tell(rank, rpc.rpc_sync("late", torch.add, args=(1, 2)))
        tell(rank, said("waits").partition(" at ")[0])
    else:
        process_that("waits")
        rpc.init_rpc("late", directory=groups.published_directory())
    rpc.shutdown(group=["worker0", "late"], timeout=SECONDS)


def calls_one_that_never_joins(rank: int, size: int) -> None:
    rpc.init_rpc("worker0", directory="self")
    for call in (rpc.rpc_sync, rpc.rpc_async, rpc.remote):
        try:
            call("late", torch.add, args=(1, 2), timeout=0.1)
        except RuntimeError as error:
            tell(rank, error)
    rpc.shutdown()


def calls_in_a_fork(rank: int, size: int) -> None:
    rpc.init_rpc("worker0", directory="self")
    if not (child := os.fork()):
        try:
            rpc.rpc_sync("worker0", torch.add, args=(1, 2), timeout=SECONDS)
        except RuntimeError as error:
            tell(rank, type(error).__name__, error)
        os._exit(0)
    os.waitpid(child, 0)
    rpc.shutdown()


def calls_one_that_has_left(rank: int, size: int) -> None:
    """The error is in the future, as with every call."""
    joined(rank, size)
    if rank == 1:
        rpc.shutdown(graceful=False)
        news(1)
        return
    wait_for_news(1)
    for call in (rpc.rpc_async, rpc.remote):
        found = call("worker1", torch.add, args=(1, 2), timeout=2.0)
        try:
            found.wait() if isinstance(found, rpc.Future) else found.to_here()
        except RuntimeError as error:
            tell(rank, type(error).__name__)
    rpc.shutdown()


if __name__ == "__main__":
    sys.exit(groups.main(partial(groups.in_turn, globals()), int(sys.argv[1]), *sys.argv[2:]))
