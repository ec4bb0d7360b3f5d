"""Programs whose members begin together, or cannot, each a process of its own.

python -m tests.rpc.beginnings PROCESSES PROGRAM...

As in `tests.rpc.groups`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from ps_service import addresses
from ps_service.server import Server
from tests.rpc import groups
from tests.rpc.groups import news, tell, wait_for_file, wait_for_news
from trainer_client import rpc
from trainer_client.rpc import agent, entry
from trainer_client.rpc.waiting import Deadline

SECONDS = 20.0


def begin(name: str, rank: int, size: int, seconds: float = SECONDS) -> bool:
    """Joins a group of `size`; if that fails, tells why and gives False."""
    try:
        rpc.init_rpc(name, rank=rank, world_size=size, join_timeout=seconds, lease_seconds=0.5)
    except RuntimeError as error:
        tell(rank, type(error).__name__, error)
        return False
    return True


def when_it_waits(does: str, says: str = "joins its group", logger: str = "trainer_client") -> None:
    """Makes this process announce that it waits, or something else, when it first says so in the log."""

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if says in record.getMessage() and not os.path.exists(path(does)):
                with open(f"{path(does)}.new", "w") as file:
                    file.write(f"{os.getpid()} {record.getMessage()}")
                os.rename(f"{path(does)}.new", path(does))

    logging.getLogger(logger).setLevel(logging.INFO)
    logging.getLogger(logger).addHandler(Heard())


def give_up_when(does: str) -> None:
    """Has joining end, as at the end of its time, once a process has announced this."""

    class Announced(Deadline):
        @property
        def over(self) -> bool:
            return os.path.exists(path(does)) or super().over

    entry.Deadline = Announced  # type: ignore[misc]


@contextmanager
def leave_once_told(*others: int) -> Iterator[None]:
    """Has the member with the directory leave as soon as the others have announced that they know why: it would stay
    for some seconds more, to tell those that come late."""
    within = agent._within

    async def until_told(seconds: float, wait: Any) -> None:
        known = asyncio.create_task(asyncio.to_thread(lambda: all(map(announced, others))))
        stays = asyncio.create_task(within(seconds, wait))
        await asyncio.wait([known, stays], return_when=asyncio.FIRST_COMPLETED)
        stays.cancel()

    with patch.object(agent, "_within", until_told):
        yield


def announced(rank: int) -> bool:
    """Waits until a process has announced something."""
    wait_for_news(rank)
    return True


def path(what: str) -> str:
    return f"{os.environ['GROUP_FILES']}/{what}"


def announce(what: str) -> None:
    """Announces the number of this process."""
    with open(path(f"{what}.new"), "w") as file:
        file.write(str(os.getpid()))
    os.rename(path(f"{what}.new"), path(what))


def process_that(does: str) -> int:
    """The number of the process that has announced this."""
    wait_for_file(path(does))
    with open(path(does)) as file:
        return int(file.read().split()[0])


def leave_at_once(rank: int, size: int) -> None:
    """In groups of the same processes, one after the other."""
    for port in os.environ["GROUP_PORTS"].split():
        os.environ["MASTER_PORT"] = port
        if begin(f"worker{rank}", rank, size):
            rpc.shutdown(graceful=False)
            tell(rank, "left")


def same_name(rank: int, size: int) -> None:
    begin(f"worker{rank % (size - 1)}", rank, size)


def same_rank(rank: int, size: int, taken: str) -> None:
    """The last process has the rank of another."""
    begin(f"worker{rank}", int(taken) if rank == size - 1 else rank, size)


def same_rank_at_once(rank: int, size: int) -> None:
    """The last process has rank 0, too, and finds the address taken only when it is about to listen there."""
    if rank == size - 1:
        while not _is_taken():
            pass
    with patch.object(addresses, "check_free", lambda _: None) if rank == size - 1 else nullcontext():
        begin(f"worker{rank}", rank % (size - 1), size)


def _is_taken() -> bool:
    with socket.socket() as connection:
        return connection.connect_ex((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))) == 0


def other_size(rank: int, size: int, wrong: str) -> None:
    """The process with that number thinks that there is one member more."""
    with leave_once_told(*range(1, size)):
        begin(f"worker{rank}", rank, size + (rank == int(wrong)))
    news(rank)


def open_and_whole(rank: int, size: int) -> None:
    """The last process does not give a world_size."""
    if rank < size - 1:
        begin(f"worker{rank}", rank, size - 1)
        news(rank)
        wait_for_news(size - 1)
        rpc.shutdown(timeout=SECONDS)
        return
    for other in range(rank):
        wait_for_news(other)
    try:
        rpc.init_rpc(f"worker{rank}", rank=rank)
    except RuntimeError as error:
        tell(rank, error)
    news(rank)


def one_too_few(rank: int, size: int) -> None:
    """The group is to have one member more. The process of rank 0 says so in the log, and then gives up for both.

    Before that, rank 1 has begun and said so as well.
    """
    when_it_waits(f"waits{rank}", "waits for rank 2" if rank else "waits for rank 1, rank 2")
    if rank == 1:
        process_that("waits0")
    else:
        give_up_when("waits1")
    with leave_once_told(1):
        begin(f"worker{rank}", rank, size + 1)
    news(rank)
    with open(path(f"waits{rank}")) as file:
        tell(rank, file.read().partition(" ")[2].partition("; it has waited")[0])


def killed(rank: int, size: int, comes_back: str) -> None:
    """One is killed in `init_rpc`; it comes back, or the others give up."""
    if rank == 0:
        when_it_waits("noticed", "the connection of trainer", "ps_service.events")
        if comes_back == "no":
            give_up_when("waits2")
    if rank == 1:
        when_it_waits("killed")
        begin("worker1", rank, size)
        return
    if rank == 2:
        os.kill(process_that("killed"), signal.SIGKILL)
        # Until the directory has noticed, the group would be complete.
        process_that("noticed")
        when_it_waits("waits2", "rank 1")
        if comes_back == "yes" and not os.fork():
            if begin("worker1", 1, size):
                rpc.shutdown(timeout=SECONDS)
                tell(1, "left")
            os._exit(0)
    if begin(f"worker{rank}", rank, size):
        rpc.shutdown(timeout=SECONDS)
        tell(rank, "left")


def keeper_killed(rank: int, size: int) -> None:
    """The member with the directory is killed in `init_rpc`, while others wait there."""
    if rank == 0:
        when_it_waits("keeper")
        begin("worker0", 0, size)
    elif rank == 1:
        when_it_waits("other")
        begin("worker1", 1, size, 2.0)
    else:
        keeper = process_that("keeper")
        process_that("other")
        os.kill(keeper, signal.SIGKILL)


def stopped(rank: int, size: int) -> None:
    """One is stopped in `init_rpc`. The others begin nevertheless, and so does it, once it goes on."""
    if rank == 1:
        when_it_waits("stopped")
        if begin("worker1", rank, size):
            tell(rank, "has begun")
            rpc.shutdown(timeout=SECONDS)
        return
    if rank == 2:
        process = process_that("stopped")
        os.kill(process, signal.SIGSTOP)
        begin("worker2", rank, size)
        os.kill(process, signal.SIGCONT)
    else:
        begin("worker0", rank, size)
    rpc.shutdown(timeout=SECONDS)
    tell(rank, "left")


def beside_process_group(rank: int, size: int) -> None:
    """Torch's process group and two groups, one after the other, at the same address."""
    dist.init_process_group("gloo", rank=rank, world_size=size)
    for _ in range(2):
        groups.ring(rank, size)
        x = torch.ones(1)
        dist.all_reduce(x)
        tell(rank, x.item())
    dist.destroy_process_group()


def through_a_file(rank: int, size: int) -> None:
    """Two groups and torch's process group, all with the same file."""
    method = f"file://{path('meeting')}"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=size)
    for number in range(2):
        options = rpc.TensorPipeRpcBackendOptions(init_method=method)
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size, rpc_backend_options=options)
        x = torch.full((2,), float(number))
        tell(rank, rpc.rpc_sync(f"worker{(rank + 1) % size}", torch.add, args=(x, 1)).tolist())
        rpc.shutdown(timeout=SECONDS)
    dist.barrier()
    tell(rank, os.path.exists(f"{path('meeting')}.rpc"))
    dist.destroy_process_group()


def through_a_file_without_keeper(rank: int, size: int) -> None:
    """Rank 0 is missing."""
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{path('nothing')}")
    try:
        rpc.init_rpc("worker1", rank=1, world_size=2, rpc_backend_options=options, join_timeout=0.2)
    except RuntimeError as error:
        tell(rank, type(error).__name__, error)


def beside_without_keeper(rank: int, size: int) -> None:
    """Rank 0 is in the process group only."""
    dist.init_process_group("gloo", rank=rank, world_size=size)
    if rank > 0:
        begin(f"worker{rank}", rank, size, 0.2)
    dist.barrier()
    dist.destroy_process_group()


def by_file_open(rank: int, size: int) -> None:
    """Open groups through one file: the last rank comes first, and one comes after all have gone."""
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{path('meeting')}")
    names = [f"worker{other}" for other in range(size)]
    if rank < size - 1:
        wait_for_news(rank + 1)
    rpc.init_rpc(f"worker{rank}", rank=rank, rpc_backend_options=options)
    news(rank)
    rpc.barrier(names, timeout=SECONDS)
    rpc.shutdown(timeout=SECONDS, group=names)
    tell(rank, "left")
    if rank == 0:
        rpc.init_rpc("alone", rank=0, rpc_backend_options=options)
        rpc.shutdown()
        tell(rank, "left again")


def by_file_leaving(rank: int, size: int) -> None:
    """Another member has reached the directory of an open group, and enters it when its keeper stops."""
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{path('meeting')}")
    if rank == 0:
        before(Server, "stop", partial(news, 2), partial(wait_for_news, 3))
        rpc.init_rpc("worker0", rank=0, rpc_backend_options=options)
        news(0)
        wait_for_news(1)
    else:
        before(entry.Entry, "make", partial(news, 1), partial(wait_for_news, 2))
        before(entry.Entry, "may_meet_another", partial(news, 3))
        wait_for_news(0)
        rpc.init_rpc("worker1", rank=1, rpc_backend_options=options)
    rpc.shutdown()
    tell(rank, "left")


def before(cls: type, method: str, *steps: Callable[[], None]) -> None:
    """Takes some steps before a method begins."""
    original = getattr(cls, method)

    async def called(*args: Any, **options: Any) -> Any:
        for step in steps:
            await asyncio.to_thread(step)
        return await original(*args, **options)

    setattr(cls, method, called)


def by_file_killed(rank: int, size: int) -> None:
    """The first of an open group is killed. One that comes later is not in a group of its own."""
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{path('meeting')}")
    if rank == 0:
        rpc.init_rpc("worker0", rank=0, rpc_backend_options=options)
        announce("killed")
        news(0)
        wait_for_news(99)
    wait_for_news(0)
    if rank == 1:
        rpc.init_rpc("worker1", rank=1, rpc_backend_options=options)
        tell(rank, rpc.rpc_sync("worker0", torch.add, args=(1, 2)))
        news(1)
        wait_for_news(2)
        rpc.shutdown(graceful=False)
        return
    wait_for_news(1)
    os.kill(process_that("killed"), signal.SIGKILL)
    try:
        rpc.init_rpc("worker2", rank=2, rpc_backend_options=options, join_timeout=5.0)
    except RuntimeError as error:
        tell(rank, type(error).__name__, str(error).partition(", at")[0])
    news(2)


if __name__ == "__main__":
    sys.exit(groups.main(partial(groups.in_turn, globals()), int(sys.argv[1]), *sys.argv[2:]))
