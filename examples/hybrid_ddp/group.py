"""Starts the group of a master, two trainers and a parameter server, each in a process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import distributed, multiprocessing

from examples.hybrid_ddp.trainer import TRAINERS
from examples.members import gather, serve
from examples.shielded import shielded
from trainer_client import rpc
from trainer_client.rpc.current import has_agent

TRAINER_NAMES = [f"trainer{rank}" for rank in range(TRAINERS)]
MASTER = "master"
SERVER = "ps"
NAMES = [*TRAINER_NAMES, MASTER, SERVER]
"""By rank, as in the tutorial."""


@contextmanager
def group() -> Iterator[None]:
    """Makes this process the master, and runs the others during the block; they have ended after it.

    Raises:
        PsError: A member failed, or did not join in time.
    """
    rpc.init_rpc(MASTER, rank=NAMES.index(MASTER), directory="self")
    with tempfile.TemporaryDirectory() as folder:
        others = [name for name in NAMES if name != MASTER]
        with shielded():
            started = multiprocessing.spawn(
                _run, args=(others, rpc.address(), folder), nprocs=len(others), join=False, daemon=True
            )
        try:
            gather(NAMES)
            yield
            rpc.shutdown(group=NAMES)
            while not started.join():
                pass
        except BaseException:
            for process in started.processes:
                process.kill()
            if has_agent():
                rpc.shutdown(graceful=False)
            raise


def _run(index: int, names: list[str], directory: str, folder: str) -> None:
    """The process of a member: joins the group and waits for calls."""
    torch.set_num_threads(1)
    name = names[index]
    trains = name in TRAINER_NAMES
    if trains:
        _join_process_group(TRAINER_NAMES.index(name), Path(folder, "process_group"))
    offers = ["examples.hybrid_ddp.trainer"] if trains else []
    rpc.init_rpc(name, rank=NAMES.index(name), directory=directory, allow=offers)
    gather(NAMES)
    serve(NAMES)
    if trains:
        distributed.destroy_process_group()


def _join_process_group(rank: int, file: Path) -> None:
    """Joins the trainers' process group. The rendezvous uses a file, so that no port has to be chosen."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=TRAINERS)
