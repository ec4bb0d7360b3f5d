"""Starts the group of a parameter server and its trainers, each in a process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import multiprocessing

from examples.members import gather, serve
from examples.shielded import shielded
from trainer_client import rpc
from trainer_client.rpc.current import has_agent

SERVER = "ps"


@contextmanager
def group(trainers: int) -> Iterator[list[str]]:
    """Makes this process the parameter server, and runs trainers during the block; they have ended after it.

    Yields:
        The names of the trainers.

    Raises:
        PsError: A member failed, or did not join in time.
    """
    trainer_names = [f"trainer{rank}" for rank in range(trainers)]
    names = [SERVER, *trainer_names]
    rpc.init_rpc(SERVER, rank=0, directory="self", allow=["examples.batched_updates.server"])
    with shielded():
        started = multiprocessing.spawn(_train, args=(names, rpc.address()), nprocs=trainers, join=False, daemon=True)
    try:
        gather(names)
        yield trainer_names
        rpc.shutdown(group=names)
        while not started.join():
            pass
    except BaseException:
        for process in started.processes:
            process.kill()
        if has_agent():
            rpc.shutdown(graceful=False)
        raise


def _train(index: int, names: list[str], directory: str) -> None:
    """The process of a trainer: joins the group and waits for calls."""
    torch.set_num_threads(1)
    rpc.init_rpc(names[index + 1], rank=index + 1, directory=directory, allow=["examples.batched_updates.trainer"])
    gather(names)
    serve(names)
