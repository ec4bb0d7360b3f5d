"""Owners and trainers of an example as processes of their own."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Protocol, Self

import torch

from examples.shielded import shielded
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server

_END_SECONDS = 5.0

PATIENCE = 300.0
"""Seconds to wait for an answer: an owner's first table compiles its code, for a minute and more on a busy machine."""


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
        with shielded():
            process.start()
        there.close()
        self._started.append((process, here))
        return here


async def start_owners(processes: Processes, count: int, allowed: Callable[[], AllowList]) -> list[str]:
    """Starts owners, and returns their addresses once they serve.

    Args:
        processes: Starts them.
        count: How many. Their names are ps0, ps1 and so on.
        allowed: Says in each owner's process what trainers may name; a function of a module.

    Raises:
        EOFError: One of them has ended.
    """
    connections = [processes.start(_own, f"ps{number}", allowed) for number in range(count)]
    return [await asyncio.to_thread(each.recv) for each in connections]


class Counted(Protocol):
    """Settings that say how many processes there are."""

    @property
    def owners(self) -> int:
        """Owner processes."""

    @property
    def trainers(self) -> int:
        """Trainer processes."""


class Trainers:
    """Trainers at work.

    Args:
        processes: Starts them.
        run: What each runs, in its process: a function of the rank, the settings, the addresses and a connection, into
            which it sends the loss of every step, and at the end None.
        settings: How many, and what they do.
        addresses: Where the owners are.

    Attributes:
        losses: Of the steps of each trainer, as far as `read`.
    """

    def __init__(
        self, processes: Processes, run: Callable[..., None], settings: Counted, addresses: Sequence[str]
    ) -> None:
        self.losses: list[list[float]] = [[] for _ in range(settings.trainers)]
        self._working = {rank: processes.start(run, rank, settings, addresses) for rank in range(settings.trainers)}

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


def _own(name: str, allowed: Callable[[], AllowList], told: Connection) -> None:
    """The process of an owner. It sends its address, and serves until the connection is closed."""
    torch.set_num_threads(1)
    asyncio.run(_serve(name, allowed(), told))


async def _serve(name: str, allowed: AllowList, told: Connection) -> None:
    async with Server(Engine(name, allowed)) as server:
        told.send(server.address)
        try:
            await asyncio.to_thread(told.recv)
        except EOFError:
            return
