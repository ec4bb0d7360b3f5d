"""Programs of groups, each of whose members is a process of its own, forked before it has any thread.

python -m tests.rpc.groups WORLD_SIZE PROGRAM...

A program may have arguments after blanks. Several run one after the other in the same processes.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ps_wire.errors import DeadlineExceededError, PsError
from tests.ports import ReservedPort
from tests.rpc import situations as s
from trainer_client import rpc
from trainer_client.rpc import entry, rendezvous, waiting
from trainer_client.rpc.current import agent


def join(rank: int, size: int, **options: Any) -> None:
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size, allow=[s], timeout=20.0, **options)


def tell(rank: int, *what: Any) -> None:
    program = os.environ.get("GROUP_PROGRAM", "")
    os.write(1, (program + " ".join(map(str, (rank, *what))) + "\n").encode())


def alone(rank: int, size: int) -> None:
    ring(rank, size)


def alone_sparse(rank: int, size: int) -> None:
    ring(rank, size, torch.ones(2).to_sparse())


def ring_sparse(rank: int, size: int) -> None:
    ring(rank, size, torch.ones(2).to_sparse())


def ring(rank: int, size: int, x: torch.Tensor | None = None) -> None:
    """Each member calls the next, and leaves."""
    join(rank, size)
    x = torch.ones(2) if x is None else x
    result = rpc.rpc_sync(f"worker{(rank + 1) % size}", torch.add, args=(x, x))
    rpc.shutdown(timeout=20)
    tell(rank, size, result.to_dense().tolist())


def ring_twice(rank: int, size: int) -> None:
    """A process may leave a group and join another."""
    ring(rank, size)
    os.environ["MASTER_PORT"] = str(second_port())
    ring(rank, size)


def ring_twice_sparse(rank: int, size: int) -> None:
    ring_sparse(rank, size)
    os.environ["MASTER_PORT"] = str(second_port())
    ring_sparse(rank, size)


def no_group(rank: int, size: int) -> None:
    said = []
    for use in (rpc.get_worker_info, lambda: rpc.RRef(1), lambda: rpc.rpc_sync("worker0", torch.add, args=(1, 1))):
        try:
            use()
        except RuntimeError as error:
            said.append("RPC has not been initialized: this process is in no group" in str(error))
    tell(rank, "in no group" if said == [True, True, True] else said)


def second_port() -> int:
    return int(os.environ["SECOND_PORT"])


def uneven(rank: int, size: int) -> None:
    """One has work for the others when these want to go."""
    join(rank, size)
    if rank == 0:
        for n in range(20):
            rpc.rpc_async(f"worker{n % size}", s.nested_async, args=(f"worker{(n + 1) % size}", 5))
    rpc.shutdown(timeout=20)
    tell(rank, "done")


def after_shutdown(rank: int, size: int) -> None:
    join(rank, size)
    rpc.shutdown(timeout=20)
    try:
        rpc.rpc_sync("worker0", torch.add, args=(1, 1))
    except RuntimeError as error:
        tell(rank, "in no group" if "in no group" in str(error) else error)


def result_after_shutdown(rank: int, size: int) -> None:
    join(rank, size)
    future = rpc.rpc_async(f"worker{(rank + 1) % size}", torch.unbind, args=(torch.arange(2),))
    rpc.shutdown(timeout=20)
    tell(rank, [each.item() for each in future.wait()], future.value() is future.wait())


def rref_after_shutdown(rank: int, size: int) -> None:
    join(rank, size)
    rref = rpc.remote(f"worker{(rank + 1) % size}", torch.add, args=(torch.ones(2), 1))
    rref.to_here()
    rpc.shutdown(timeout=20)
    said = []
    for use, text in ((rref.to_here, "to_here\\(\\) on it"), (lambda: pickle.dumps(rref), "fork an UserRRef")):
        try:
            use()
        except RuntimeError as error:
            said.append(bool(re.search(f"in no group any more.* Cannot call {text} after deletion", str(error))))
    tell(rank, "in no group" if said == [True, True] else said)


def local_shutdown(rank: int, size: int) -> None:
    join(rank, size)
    rpc.shutdown(graceful=False)
    tell(rank, "left")


def local_shutdown_with_rpc(rank: int, size: int) -> None:
    join(rank, size)
    rpc.rpc_sync(f"worker{(rank + 1) % size}", torch.add, args=(torch.ones(2), 1))
    rpc.barrier(timeout=20)
    rpc.barrier([f"worker{rank}"])
    rpc.shutdown(graceful=False)
    tell(rank, "left")


def shutdown_timeout(rank: int, size: int) -> None:
    """One waits for the other, who goes without a word."""
    join(rank, size)
    if rank == 1:
        wait_for_news(0)
        rpc.shutdown(graceful=False)
        tell(rank, "left")
        return
    try:
        rpc.shutdown(timeout=0.3)
    except DeadlineExceededError as error:
        tell(rank, str(error).partition(" within")[0])
        news(0)


def shutdown_while_called(rank: int, size: int) -> None:
    """One wants to go while a call of the other runs there."""
    join(rank, size)
    if rank == 1:
        call = rpc.rpc_async("worker0", s.wait_for, args=("the end", 10.0), timeout=2.5)
        rpc.rpc_sync("worker0", s.begun, args=("the end",))
        news(1)
        with suppress(PsError):
            call.wait()
        tell(rank, "heard of it")
        rpc.shutdown(graceful=False)
        return
    wait_for_news(1)
    try:
        rpc.shutdown(timeout=0.3, group=["worker0"])
    except DeadlineExceededError as error:
        s.let_go("the end")
        tell(rank, error)


def duplicate(rank: int, size: int) -> None:
    """Two want the same name."""
    if rank == 0:
        rpc.init_rpc("worker0", directory="self")
        publish_directory(rank)
        wait_for_news(1)
        rpc.shutdown(graceful=False)
        tell(rank, "alone")
        return
    try:
        rpc.init_rpc("worker0", directory=published_directory())
    except RuntimeError as error:
        tell(rank, "another name is needed" if "choose another name" in str(error) else error)
    news(1)


def open_group(rank: int, size: int) -> None:
    """Members come and go as they like."""
    if rank == 0:
        rpc.init_rpc("keeper", directory="self", allow=[s])
        publish_directory(rank)
        for n in range(1, size):
            wait_for_news(n)
        tell(rank, len(agent().client.status().wait().members), "members")
        news(0)
        rpc.shutdown(group=["keeper", *(f"late{n}" for n in range(1, size))], timeout=20)
        return
    rpc.init_rpc(f"late{rank}", directory=published_directory(), allow=[s])
    tell(rank, rpc.rpc_sync("keeper", s.my_add, args=(2, 3)))
    news(rank)
    wait_for_news(0)
    rpc.shutdown(group=["keeper", *(f"late{n}" for n in range(1, size))], timeout=20)


def late(rank: int, size: int) -> None:
    """One is there before the other; each calls the other."""
    if rank == 0:
        rpc.init_rpc("early", directory="self", allow=[s])
        publish_directory(rank)
        wait_for_news(1)
        tell(rank, "early called late:", rpc.rpc_sync("late", s.my_add, args=(1, 2)))
    else:
        rpc.init_rpc("late", directory=published_directory(), allow=[s])
        news(1)
        tell(rank, "late called early:", rpc.rpc_sync("early", s.my_add, args=(1, 2)))
    rpc.shutdown(group=["early", "late"], timeout=20)


def before_the_directory(rank: int, size: int) -> None:
    """One asks for a directory that is not there yet."""
    place = f"127.0.0.1:{second_port()}"
    if rank == 1:
        news(1)
        rpc.init_rpc("bird", directory=place, allow=[s])
        other = "keeper"
    else:
        wait_for_news(1)
        rpc.init_rpc("keeper", directory="self", listen=place, allow=[s])
        rpc.barrier(["keeper", "bird"], timeout=20)
        other = "bird"
    if rank == 1:
        rpc.barrier(["keeper", "bird"], timeout=20)
    tell(rank, rpc.rpc_sync(other, s.my_add, args=(1, 2)))
    rpc.shutdown(group=["keeper", "bird"], timeout=20)


def without_rank(rank: int, size: int) -> None:
    names = [f"m{n}" for n in range(size)]
    if rank == 0:
        rpc.init_rpc("m0", directory="self")
        publish_directory(rank)
    else:
        rpc.init_rpc(f"m{rank}", directory=published_directory())
    ids = rpc.all_gather(rpc.get_worker_info().id, names, timeout=20)
    if rank == 0:
        tell(rank, "ids", sorted(ids.values()))
    rpc.shutdown(group=names, timeout=20)


def threads(rank: int, size: int) -> None:
    join(rank, size, rpc_backend_options=rpc.TensorPipeRpcBackendOptions(num_worker_threads=3))
    tell(rank, agent().engine.compute.threads)
    rpc.shutdown()


def timeout(rank: int, size: int) -> None:
    options = rpc.TensorPipeRpcBackendOptions(rpc_timeout=12.5)
    rpc.init_rpc("worker0", rank=rank, world_size=size, rpc_backend_options=options)
    tell(rank, rpc.get_rpc_timeout())
    rpc.shutdown()


def process_group(rank: int, size: int, when: str) -> None:
    """The group beside a process group of torch's."""

    def begin() -> None:
        dist.init_process_group(
            "gloo", init_method=f"file://{os.environ['GROUP_FILES']}/pg", rank=rank, world_size=size
        )

    if when == "first":
        begin()
    join(rank, size)
    if when == "second":
        begin()
    x = torch.ones(())
    dist.all_reduce(x)
    tell(rank, x.item(), rpc.rpc_sync(f"worker{1 - rank}", s.my_add, args=(1, 2)))
    rpc.shutdown(timeout=20)
    dist.destroy_process_group()


# Between the processes, before they are a group: files


def news(rank: int) -> None:
    """Announces that this process has come to this point."""
    with open(f"{os.environ['GROUP_FILES']}/{rank}", "w"):
        pass


def wait_for_news(rank: int) -> None:
    wait_for_file(f"{os.environ['GROUP_FILES']}/{rank}")


def wait_for_file(path: str) -> None:
    """Leaves the processor to those that are to write it."""
    while not os.path.exists(path):
        time.sleep(0.001)


def publish_directory(rank: int) -> None:
    path = f"{os.environ['GROUP_FILES']}/directory"
    with open(f"{path}.new", "w") as file:
        file.write(agent().server.address)
    os.rename(f"{path}.new", path)


def published_directory() -> str:
    path = f"{os.environ['GROUP_FILES']}/directory"
    wait_for_file(path)
    with open(path) as file:
        return file.read()


def in_turn(programs: Mapping[str, Callable[..., None]], rank: int, size: int, *given: str) -> None:
    """Programs one after the other, each with ports and files of its own; what is told begins with the program."""
    files, ports = os.environ["GROUP_FILES"], os.environ["GROUP_PORTS"].split()
    for number, program in enumerate(given):
        folder = f"{files}/program{number}"
        os.makedirs(folder, exist_ok=True)
        os.environ.update(GROUP_FILES=folder, GROUP_PROGRAM=f"{program}: ", MASTER_PORT=ports[number])
        name, *arguments = program.split()
        programs[name](rank, size, *arguments)


def main(run: Callable[..., None], size: int, *arguments: str) -> int:
    """Starts the members, and gives the worst of their exit codes. One that is killed counts as ended well.

    They look for what they wait for, and say so, after a tenth of a second.
    """
    waiting._FIRST_SECONDS = waiting.LOOK_SECONDS = entry.LOOK_SECONDS = rendezvous.LOOK_SECONDS = 0.1  # type: ignore[misc]
    with ExitStack() as stack, ReservedPort() as another, tempfile.TemporaryDirectory() as files:
        ports = [str(stack.enter_context(ReservedPort()).number) for _ in range(len(arguments) + 2)]
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=ports[0], SECOND_PORT=str(another.number))
        os.environ["GROUP_PORTS"] = " ".join(ports)
        os.environ["GROUP_FILES"] = files
        context = mp.get_context("fork")
        members = [context.Process(target=run, args=(rank, size, *arguments)) for rank in range(size)]
        for member in members:
            member.start()
        for member in members:
            member.join(45)
        codes = [member.exitcode for member in members]
        for member in members:
            if member.is_alive():
                member.kill()
        return max((1 if code is None else abs(code) for code in codes if code != -signal.SIGKILL), default=0)


if __name__ == "__main__":
    sys.exit(main(partial(in_turn, globals()), int(sys.argv[1]), *sys.argv[2:]))
