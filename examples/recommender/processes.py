"""Owners and trainers as processes of their own."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

import torch

from examples.recommender import model, trainer
from examples.recommender.settings import Settings
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server

_END_SECONDS = 5.0


class Processes:
    """Processes that end with a `with` block. None outlives this one."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._started: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process, connection in reversed(self._started):
            connection.close()  # for which an owner waits; a trainer has ended by now, or is killed
            process.join(_END_SECONDS if kind is None else 0)
            if process.is_alive():
                process.kill()
                process.join()

    def start(self, target: Callable[..., None], *arguments: object) -> Connection:
        """Starts a process, and returns the connection to it. The process has the other end as its last argument."""
        here, there = self._context.Pipe()
        process = self._context.Process(target=target, args=(*arguments, there), daemon=True)
        process.start()
        there.close()
        self._started.append((process, here))
        return here


async def start_owners(processes: Processes, count: int) -> list[str]:
    """Starts owners, and returns their addresses once they serve.

    Raises:
        EOFError: One of them has ended.
    """
    connections = [processes.start(_own, f"ps{number}") for number in range(count)]
    return [await asyncio.to_thread(each.recv) for each in connections]


class Trainers:
    """Trainers at work.

    Args:
        processes: Starts them.
        settings: How many, and what they do.
        addresses: Where the owners are.

    Attributes:
        losses: Of the steps of each trainer, as far as `read`.
    """

    def __init__(self, processes: Processes, settings: Settings, addresses: Sequence[str]) -> None:
        self.losses: list[list[float]] = [[] for _ in range(settings.trainers)]
        self._working = {
            rank: processes.start(trainer.run, rank, settings, addresses) for rank in range(settings.trainers)
        }

    @property
    def steps(self) -> int:
        """Steps that all have taken together."""
        return sum(map(len, self.losses))

    @property
    def have_finished(self) -> bool:
        """Whether all have taken all of their steps."""
        return not self._working

    def read(self) -> None:
        """Reads what they have sent.

        Raises:
            EOFError: One of them has ended early.
        """
        for rank, connection in list(self._working.items()):
            while rank in self._working and connection.poll():
                loss = connection.recv()
                if loss is None:
                    del self._working[rank]
                else:
                    self.losses[rank].append(loss)


def _own(name: str, told: Connection) -> None:
    """The process of an owner. It sends its address, and serves until the connection is closed."""
    torch.set_num_threads(1)
    asyncio.run(_serve(name, told))


async def _serve(name: str, told: Connection) -> None:
    async with Server(Engine(name, AllowList([model]))) as server:
        told.send(server.address)
        try:
            await asyncio.to_thread(told.recv)
        except EOFError:
            return
