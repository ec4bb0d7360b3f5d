"""The server: one owner, served over gRPC."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self

import grpc
from grpc_reflection.v1alpha import reflection

from ps_service import addresses
from ps_service.durability.keeper import Keeper
from ps_service.memory.malloc import MemoryKeeper, keep_free_memory
from ps_service.monitoring.sampler import Sampler
from ps_service.rpc.grpc_stream import HEALTH, OPTIONS, SERVICE, Health
from ps_service.rpc.servicer import Servicer
from ps_service.sessions.gate import Gate
from ps_service.sessions.sweeper import Sweeper
from ps_service.tables.expiry import Expiry
from ps_service.training.optimizers import HostedOptimizer
from ps_wire.errors import PsError
from ps_wire.runtime import forks
from ps_wire.runtime.threads import BLOCKING

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.monitoring.web import Web

_log = logging.getLogger(__name__)

STOP_SECONDS: Final = 20.0
"""How long an owner that stops waits for hosted code that runs."""

_LEAST_SECONDS: Final = 2.0
"""What is left of that when draining has used up its time."""

_LOOK_SECONDS: Final = 0.01
"""Seconds between checks of a draining owner for open passes."""

_BACK_SECONDS: Final = 2.0
"""Seconds for which a draining owner waits for the pass of a trainer whose stream broke."""


class Server:
    """Serves an owner over gRPC, with gRPC health checks and reflection.

    Use it as an async context manager, or call `start` and then `drain` or `stop`.

    `listen`, `http` and `direct_port` say where it listens: port 0 takes a free one, `http` may be empty, and
    `direct_port` `off`. `insecure` allows addresses beyond loopback, although traffic is not encrypted. With a data
    directory, a checkpoint is written every `checkpoint_every` seconds while it serves (0: none).

    `kept` is set once the last checkpoint is written, or none is needed: the process may end. `failed` says that it
    could not be written.

    Raises `ValueError` if an address is not a loopback address and `insecure` was not given, or if `checkpoint_every`
    was given without a data directory.
    """

    def __init__(
        self,
        engine: Engine,
        listen: str = "127.0.0.1:0",
        insecure: bool = False,
        http: str = "",
        direct_port: int | Literal["off"] = "off",
        checkpoint_every: float = 0.0,
    ) -> None:
        for address in filter(None, (listen, http)):
            addresses.check_allowed(address, insecure)
        if checkpoint_every and engine.data_dir is None:
            raise ValueError("checkpoint_every needs data_dir, the folder that checkpoints are written to")
        self.engine = engine
        self.servicer = Servicer(engine)
        self.kept = threading.Event()
        self.failed = False
        self._listen = listen
        self._http = http
        self._direct_port = direct_port
        self._checkpoint_every = checkpoint_every
        self._tasks: list[asyncio.Task[None]] = []
        self._web: Web | None = None
        self._serving = False
        self._keeper: Keeper | None = None
        self._orderly = True
        self._health = Health()
        self._server: grpc.aio.Server | None = None
        self._sweeper = Sweeper(engine.limits, self.servicer.sweep)
        self._sampler = Sampler(engine)
        self._expiry = Expiry(engine.census.tables.values)
        self._port = 0

    @property
    def address(self) -> str:
        """Host and port that trainers connect to."""
        return f"{self._listen.rpartition(':')[0]}:{self._port}"

    @property
    def http_address(self) -> str:
        """Host and port of /metrics and /healthz; empty if they are not served."""
        return "" if self._web is None else self._web.address

    @property
    def state(self) -> str:
        """The state: `starting`, `serving`, `stalled` (no compute thread is free) or `draining`."""
        return self.engine.state if self._serving or self.engine.draining else "starting"

    async def start(self) -> None:
        """Begins to listen, with the state of its checkpoint. Raises `OSError` or `CheckpointError` if it cannot."""
        for address in filter(None, (self._listen, self._direct_listen)):
            addresses.check_free(address)
        if self._http:
            await self._open_web()
        try:
            await self._begin()
        except BaseException:
            await self._give_up()
            raise
        self._serving = True

    async def _give_up(self) -> None:
        """Closes what was opened, after an error or a cancellation."""
        await self._end_tasks()
        if self._server is not None:
            await self._server.stop(0)
            self._server = None
        await self._close_web()
        self._close_keeper()

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
            await asyncio.wait([task])

    async def _begin(self) -> None:
        if self.engine.data_dir is not None:
            self._keeper = Keeper(self.engine, self.engine.data_dir)
            await BLOCKING.run(self._keeper.resume)
            self.engine.checkpoints.use(self._keeper.write_now)
            if self._checkpoint_every:
                self._tasks.append(asyncio.create_task(self._write_checkpoints(self._keeper)))
        keep_free_memory()
        self._server = self._assemble()
        self._port = self._open_port(self._server)
        await self._server.start()
        if self.engine.limits.max_segment_bytes:
            self.servicer.shared_memory.open()
        if self._direct_listen:
            self.servicer.direct.open(addresses.bound(self._direct_listen))
        self._sweeper.begin()
        self._sampler.begin()
        self._expiry.begin()
        self._tasks.append(asyncio.create_task(MemoryKeeper().keep()))
        self.engine.compute.when_stalled = self._health.tell_soon
        await self._health.tell(self.engine.compute.stalled)
        self.engine.events.note("started", f"{self.engine.name} is serving on {self.address}")

    async def _write_checkpoints(self, keeper: Keeper) -> None:
        """Writes one again and again. One that fails is logged, and the next is tried."""
        while True:
            await asyncio.sleep(self._checkpoint_every)
            # One that cannot be written is among the events.
            with suppress(PsError):
                await BLOCKING.run(keeper.write_now)

    async def drain(self, seconds: float) -> None:
        """Refuses new work, waits for running work, writes a checkpoint if there is a data directory, and stops.

        Threads of work that goes on after `seconds` have two seconds more. Raises `CheckpointError` if the checkpoint
        could not be written; the owner has stopped nevertheless.
        """
        until = time.monotonic() + seconds
        await self.quiet(seconds)
        try:
            await self._keep()
        except BaseException as error:
            self.failed = True
            # Set now, because hosted code that hangs may prevent the owner from stopping.
            self.engine.events.note("checkpoint", str(error), "error")
            raise
        finally:
            self.kept.set()
            await self.stop(max(until - time.monotonic(), _LEAST_SECONDS))

    async def quiet(self, seconds: float) -> None:
        """Refuses new work, and waits at most so many seconds for running work.

        An owner with a data directory also waits for its open passes, because forward graphs cannot be saved: for those
        that wait for no other owner which drains or is away.
        """
        gate = self.engine.gate
        if gate.state is Gate.State.STOPPED:
            return
        self.engine.events.note("draining", f"{self.engine.name} is draining: it takes no new work")
        await self._health.drain()
        gate.state = Gate.State.DRAINING if self.engine.durable else Gate.State.STOPPED
        self.servicer.session_handlers.tell_draining()
        self._end_waits()
        try:
            async with asyncio.timeout(seconds):
                await self._at_rest()
                # More requests may have been accepted while answers were being sent.
                while self._unfinished():
                    await self._at_rest()
        except TimeoutError:
            self._orderly = False
            text = f"work was still running after {seconds:g} s of draining; it was cut off"
            self.engine.events.note("drained", text, "warning")
        else:
            self.engine.events.note("drained", f"{self.engine.name} has finished its work")
        gate.state = Gate.State.STOPPED

    def _end_waits(self) -> None:
        """Ends the steps that wait for other trainers, who may not step any more."""
        for hosted in self.engine.registry.objects():
            if isinstance(hosted.value, HostedOptimizer) and hosted.value.aggregator is not None:
                hosted.value.aggregator.drain()

    async def _at_rest(self) -> None:
        """Waits until no work is unfinished and every answer has been sent."""
        # Polling, because passes end in many places.
        while self._unfinished():  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)
        await self.servicer.settled()

    def _unfinished(self) -> bool:
        return self.servicer.busy or (self.engine.gate.state is Gate.State.DRAINING and self._passes())

    async def _keep(self) -> None:
        if self._keeper is None:
            return
        # Sessions must not expire any more: what they hold would be missing from the checkpoint.
        await self._sweeper.end()
        await self._expiry.end()
        self.servicer.cut_off()
        await self._keeper.keep(self._orderly)

    def _close_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.close()

    async def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Stops: ends every connection, and waits at most so many seconds for threads that still run hosted code.

        What has not ended then is named in the log, and goes on in threads that end with the process at the latest.
        """
        self.engine.gate.state = Gate.State.STOPPED
        await self._sweeper.end()
        await self._sampler.end()
        await self._expiry.end()
        await self._end_tasks()
        # Before gRPC, whose streams stand beside the direct connections: the last answers are still read.
        await self.servicer.direct.close()
        if self._server is not None:
            await self._server.stop(0)
        await self.servicer.shared_memory.close()
        self.servicer.close()
        await BLOCKING.run(self.engine.close, seconds)
        # Late, because until then it can be asked how far the end has come.
        await self._close_web()
        self._close_keeper()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _open_web(self) -> None:
        # Not at the top: the import takes 0.3 s, and most owners in a group do not need it.
        from ps_service.monitoring.web import Web

        self._web = Web(self.engine, self._http, lambda: self.state, lambda: self.address)
        await self._web.start()
        _log.info("%s serves a page at http://%s/ and metrics at /metrics", self.engine.name, self.http_address)

    async def _close_web(self) -> None:
        if self._web is not None:
            await self._web.stop()

    def _assemble(self) -> grpc.aio.Server:
        forks.use_grpc()
        # A gRPC server belongs to the event loop that runs when it is created.
        server = grpc.aio.server(options=OPTIONS)
        server.add_generic_rpc_handlers((self.servicer.handlers(),))
        self._health.add_to(server)
        reflection.enable_server_reflection((SERVICE, HEALTH, reflection.SERVICE_NAME), server)
        return server

    def _open_port(self, server: grpc.aio.Server) -> int:
        try:
            return int(server.add_insecure_port(self._listen))
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self._listen}: {error}") from error

    @property
    def _direct_listen(self) -> str:
        """Host and port of direct connections; empty for none."""
        host, _, port = self._listen.rpartition(":")
        # On a Unix socket there is no host.
        return f"{host}:{self._direct_port}" if self._direct_port != "off" and port.isdecimal() else ""

    def _passes(self) -> bool:
        """Whether a pass is open here that can go on. Its trainer is connected, or was so a moment ago."""
        there = [each for each in self.engine.sessions.all() if each.idle_seconds() < _BACK_SECONDS]
        # Owners that are stopped together would wait for each other.
        held_up = frozenset().union(*(each.held_up for each in there))
        return self.engine.contexts.used_by({each.trainer for each in there}, held_up)
