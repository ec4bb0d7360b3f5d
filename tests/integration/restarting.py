"""An owner that is started again and again on the same address, with the same data directory."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, Generic, Self, TypeVar

import torch

import trainer_client as tc
from ps_service import hosted, remote
from ps_service.engine import Engine
from ps_service.server import Server
from tests import hosted_models, optimizer_models
from tests.allowed import allowed
from tests.integration import wire_models
from tests.ports import ReservedPort
from tests.waiting import until

T = TypeVar("T")

_SOON: Final = 1.0
"""Seconds after which trainers that have not come back are taken for ones that will not."""


class Owner:
    """Starts, stops and starts again.

    Args:
        folder: Its data directory.
        name: Its name.
        modules: Whose classes it hosts, besides those of these tests.
        threads: Compute threads; 0 chooses.
        device: Where its modules live.
        options: Other arguments of `Server`.

    Attributes:
        server: What runs now.
        address: Where it listens, always the same.
    """

    def __init__(
        self,
        folder: Path,
        name: str = "ps0",
        modules: Sequence[ModuleType] = (),
        threads: int = 0,
        device: torch.device | None = None,
        **options: Any,
    ) -> None:
        self.folder = folder
        self._options = {"durability": "off"} | options
        self._modules = modules
        self._threads = threads
        self._device = device
        self.name = name
        # No other process may get it while the owner is down.
        self._port = ReservedPort()
        self.address = self._port.address

    async def start(self) -> None:
        modules = [hosted_models, optimizer_models, wire_models, sys.modules[__name__], *self._modules]
        engine = Engine(self.name, allowed(*modules), device=self._device, threads=self._threads, data_dir=self.folder)
        server = Server(engine, self.address, **self._options)
        await server.start()
        self.server = server

    async def restart(self, drain_seconds: float = 20.0) -> None:
        """As SIGTERM and a new process do it."""
        await self.server.drain(drain_seconds)
        await self.start()

    async def crash(self) -> None:
        """As SIGKILL and a new process do it: what was not written is gone. Trainers that were there have come back, if
        they do so soon: a pass that they had begun before they heard of it would be lost."""
        there = [each.trainer for each in self.server.engine.sessions.all() if each.streams]
        await self.server.stop()
        await self.start()
        with suppress(TimeoutError):
            async with asyncio.timeout(_SOON):
                await until(lambda: all(map(self._has, there)))

    def _has(self, trainer: bytes) -> bool:
        session = self.server.engine.sessions.get(trainer)
        return session is not None and session.streams > 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.server.stop()
        self._port.close()


@hosted
class Tally:
    """A plain object that can give its state, and take it."""

    def __init__(self, start: Any = 0) -> None:
        self.value = start

    @remote
    def add(self, amount: int = 1) -> int:
        self.value += amount
        return self.value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


@hosted
class Weighted(torch.nn.Module):
    """Takes its first weights as an argument, and a handle to another module."""

    def __init__(self, weight: torch.Tensor, inner: Any = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        if inner is not None:
            self.inner = inner.local_value()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = x if not hasattr(self, "inner") else self.inner(x)
        return x @ self.weight


TALLY, WEIGHTED = f"{__name__}.Tally", f"{__name__}.Weighted"


class Told(Generic[T]):
    """Collects the reports of trainers; a test can wait for a number of them."""

    def __init__(self) -> None:
        self.items: list[T] = []
        self._more = asyncio.Event()

    def add(self, item: T) -> None:
        self.items.append(item)
        self._more.set()

    async def reached(self, count: int) -> None:
        while len(self.items) < count:
            self._more.clear()
            await self._more.wait()


async def step(ps: tc.Client, opt: Any, net: Any, x: torch.Tensor) -> tuple[float, dict[str, int]]:
    """One pass; the loss, and the optimizer's versions."""
    async with ps.context() as ctx:
        loss = (await net(x)).square().mean()
        await ctx.backward(loss)
        versions = await opt.step(ctx)
    return loss.item(), versions


async def owners(stack: AsyncExitStack, folder: Path, *names: str) -> list[Owner]:
    """Owners of these names, each with a directory of its own."""
    return [await stack.enter_async_context(Owner(folder / name, name)) for name in names]
