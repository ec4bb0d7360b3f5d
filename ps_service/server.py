"""The server: one owner, served over gRPC."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self

import grpc
from grpc_reflection.v1alpha import reflection

from ps_service import addresses
from ps_service.durability.keeper import Keeper
from ps_service.durability.log.mode import Mode
from ps_service.durability.store import InUseError
from ps_service.execution.periodic import Periodic
from ps_service.memory.malloc import LOOK_SECONDS, MemoryKeeper, keep_free_memory
from ps_service.monitoring.sampler import Sampler
from ps_service.requests import revocations
from ps_service.requests.administration import end_replaced
from ps_service.rpc import claims, methods
from ps_service.rpc.certificates import OwnerCertificates
from ps_service.rpc.grpc_stream import OPTIONS, Health
from ps_service.rpc.guard import guards
from ps_service.rpc.servicer import Servicer
from ps_service.sessions.gate import Gate
from ps_service.tables.expiry import Expiry
from ps_service.training.optimizers import HostedOptimizer
from ps_wire.errors import PsError
from ps_wire.limits import MIB
from ps_wire.runtime import forks
from ps_wire.runtime.noop import noop
from ps_wire.runtime.threads import BLOCKING

if TYPE_CHECKING:
    from pathlib import Path

    from ps_service.engine import Engine
    from ps_service.monitoring.web import Web
    from ps_wire.tls import ServerTLS

_log = logging.getLogger(__name__)

STOP_SECONDS: Final = 20.0
"""How long an owner that stops waits for hosted code that runs."""

_LOG_SECONDS: Final = 1.0
"""Seconds between looks at whether the log can be written, and until a checkpoint is tried again that has failed."""

_EPOCH_SECONDS: Final = 1.0
"""Seconds between looks at whether another owner has taken the data directory, and at whether it is free at last."""

_GROWTH_SECONDS: Final = 0.1
"""Seconds between looks at the length of the log, which may grow by hundreds of megabytes a second."""

_LEAST_SECONDS: Final = 2.0
"""What is left of that when draining has used up its time."""

_LOOK_SECONDS: Final = 0.01
"""Seconds between checks of a draining owner for open passes."""

_BACK_SECONDS: Final = 2.0
"""Seconds for which a draining owner waits for the pass of a trainer whose stream broke."""


class Server:
    """Serves an owner over gRPC, with gRPC health checks and reflection.

    Use it as an async context manager, or call `start` and then `drain` or `stop`. The arguments are those of
    `OwnerConfig`; without `insecure`, an address beyond loopback is a `ValueError`. `kept` is set once the last
    checkpoint is written, has `failed`, or is not needed: the process may end. `when_replaced` is called once another
    owner has taken its place or its data directory, and this one has stopped: then only `stop` is of use. While it
    `is_waiting` for the directory, `start` may be cancelled.
    """

    def __init__(
        self,
        engine: Engine,
        listen: str = "127.0.0.1:0",
        insecure: bool = False,
        http: str = "",
        direct_port: int | Literal["off"] = "off",
        checkpoint_every: float = 0.0,
        keep_checkpoints: int = 2,
        leave_out: Collection[str] = (),
        durability: str = "",
        log_bytes: int = 1024 * MIB,
        wait_for_data_dir: float = 0.0,
        tls: ServerTLS | None = None,
        checkpoint_key_file: Path | None = None,
    ) -> None:
        for address in filter(None, (listen, http)):
            addresses.check_allowed(address, insecure or tls is not None, engine.access.is_on)
        if checkpoint_every and engine.data_dir is None:
            raise ValueError("checkpoint_every needs data_dir, the folder that checkpoints are written to")
        self.engine = engine
        self._certificates = None if tls is None else OwnerCertificates(tls)
        self.servicer = Servicer(engine, self._certificates)
        self.kept = threading.Event()
        self.failed = False
        self._listen = listen
        self._http = http
        self._direct_port = direct_port
        self._web: Web | None = None
        self._serving = False
        self._keeper: Keeper | None = None
        if checkpoint_key_file is not None and engine.data_dir is None:
            raise ValueError("checkpoint_key_file needs data_dir, the folder whose checkpoints are signed")
        self._durability = Mode.parse(durability, engine.data_dir is not None)
        if self._durability.has_log and engine.data_dir is None:
            raise ValueError("durability needs data_dir, the folder that the log is in")
        self._kept = (keep_checkpoints, leave_out, self._durability, checkpoint_key_file)
        self._log_bytes = log_bytes
        self._wait_for_data_dir = wait_for_data_dir
        self.is_waiting = False
        self._orderly = True
        self._health = Health()
        self._server: grpc.aio.Server | None = None
        lease, open_passes = engine.limits.lease_seconds, engine.limits.max_context_seconds
        self._sweeper = Periodic(min(lease, open_passes or lease) / 4, self.servicer.sweep, "checking the leases")
        self._sampler = Sampler(engine)
        self._expiry = Expiry(engine.object_counts.tables.values)
        self._periodic = [
            *(self._sweeper, self._sampler),
            Periodic(LOOK_SECONDS, MemoryKeeper().look, "giving free memory back"),
        ]
        self._periodic += revocations.periodic(engine)
        if self._durability.has_log:
            self._periodic.append(Periodic(_LOG_SECONDS, self._look_at_log, "a look at the log"))
            self._periodic.append(Periodic(_GROWTH_SECONDS, self._cut_log, "the length of the log"))
        if engine.data_dir is not None:
            self._periodic.append(Periodic(_EPOCH_SECONDS, self._look_at_epoch, "a look at the epoch"))
        if checkpoint_every:
            self._periodic.append(Periodic(checkpoint_every, self._write_checkpoint, "a checkpoint"))
        self._port = 0
        self.when_replaced: Callable[[], object] = noop

    @property
    def address(self) -> str:
        """Host and port that trainers connect to."""
        return f"{self._listen.rpartition(':')[0]}:{self._port}"

    @property
    def http_address(self) -> str:
        """Host and port of /metrics and /healthz; empty if they are not served."""
        return "" if self._web is None else self._web.address

    @property
    def http_url(self) -> str:
        """The same as a URL."""
        scheme = "http" if self._certificates is None else "https"
        return f"{scheme}://{self.http_address}" if self.http_address else ""

    @property
    def state(self) -> str:
        """The state: `starting`, `serving`, `stalled` (no compute thread is free) or `draining`."""
        return self.engine.state if self._serving or self.engine.draining else "starting"

    async def start(self) -> None:
        """Begins to listen, with the state of its checkpoint. Raises `OSError` or `CheckpointError` if it cannot, and
        `RuntimeError` if the engine is over: a server of it was stopped, or could not start."""
        if self.engine.draining:
            raise RuntimeError(f"the engine of {self.engine.name} is over: make a new one")
        for address in filter(None, (self._listen, self._direct_listen)):
            addresses.check_free(address)
        try:
            if self._http:
                await self._open_web()
            await self._begin()
        except BaseException:
            await self.stop(0.0)
            raise
        self._serving = True

    async def _begin(self) -> None:
        if self.engine.data_dir is not None:
            self._keeper = await self._take(self.engine.data_dir)
            await BLOCKING.run(self._keeper.resume)
            self._keeper.drop_strangers()
            self.engine.checkpoints.write = self._keeper.write_now
            self.engine.membership.has_data_dir = self._keeper.has_epoch
        end, loop = partial(end_replaced, self.engine), asyncio.get_running_loop()
        self.engine.directory.when_replaced = lambda entry, by: loop.call_soon_threadsafe(end, entry, by)
        keep_free_memory()
        forks.use_grpc()
        # A gRPC server belongs to the event loop that runs when it is created.
        self._server = grpc.aio.server(options=OPTIONS, interceptors=guards(self.engine.access))
        self._server.add_generic_rpc_handlers((self.servicer.handlers(), claims.handlers(self.engine)))
        self._health.add_to(self._server)
        reflection.enable_server_reflection((methods.SERVICE, methods.HEALTH, reflection.SERVICE_NAME), self._server)
        try:
            self._port = self._add_port(self._server)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self._listen}: {error}") from error
        await self._server.start()
        if self.engine.limits.max_segment_bytes:
            self.servicer.shared_memory.open()
        if self._direct_listen:
            self.servicer.direct.open(addresses.bound(self._direct_listen))
        for each in self._periodic:
            each.begin()
        self._expiry.begin()
        self.engine.compute.when_stalled = partial(self._health.tell_soon, "no free thread")
        await self._health.tell("no free thread", self.engine.compute.stalled)
        self.engine.events.note("started", f"{self.engine.name} is serving on {self.address}")

    def _add_port(self, server: grpc.aio.Server) -> int:
        if self._certificates is None:
            return int(server.add_insecure_port(self._listen))
        return int(server.add_secure_port(self._listen, self._certificates.credentials()))

    async def _take(self, folder: Path) -> Keeper:
        """The keeper of the data directory, once it is free. Raises `CheckpointError`."""
        until = time.monotonic() + self._wait_for_data_dir
        try:
            while True:
                try:
                    return Keeper(self.engine, folder, *self._kept)
                except InUseError as error:
                    left = until - time.monotonic()
                    if left <= 0:
                        raise
                    if not self.is_waiting:
                        _log.info("%s; it is waited for, for up to %g s", error, self._wait_for_data_dir)
                    self.is_waiting = True
                await asyncio.sleep(min(left, _EPOCH_SECONDS))
        finally:
            self.is_waiting = False

    async def _look_at_epoch(self) -> None:
        if self._keeper is not None and (why := await BLOCKING.run(self._keeper.fenced)):
            await self.replaced(why)

    async def _look_at_log(self) -> None:
        if self._keeper is not None:
            await BLOCKING.run(self._keeper.look_at_log)
            log = self.engine.durability.log
            await self._health.tell("no log", log is not None and log.state == "failed")

    async def _cut_log(self) -> None:
        if self._keeper is None or self._keeper.log_bytes <= self._log_bytes:
            return
        await self._write_checkpoint()
        if self._keeper.log_bytes > self._log_bytes:
            await asyncio.sleep(_LOG_SECONDS)

    async def _write_checkpoint(self) -> None:
        # One that cannot be written is among the events.
        with suppress(PsError):
            await BLOCKING.run(self.engine.checkpoints.write)

    async def drain(self, seconds: float) -> None:
        """Refuses new work, waits for running work, writes a checkpoint if there is a data directory, and stops.

        Threads have two seconds more. If the checkpoint could not be written, it stops and raises `CheckpointError`.
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

        An owner with a data directory also waits for open passes (`_passes`), because forward graphs cannot be saved.
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

    async def replaced(self, why: str) -> None:
        """A later start of its state has taken its place or its data directory: takes no request and makes no step from
        now on, and writes neither a checkpoint nor its log. Trainers that are connected are told so when they connect
        again."""
        gate = self.engine.gate
        if gate.why:
            return
        gate.close(why)
        if self._keeper is not None:
            self._keeper.give_up(why)
        self.servicer.session_handlers.end_streams()
        self.servicer.close()
        self._end_waits()
        self.engine.events.note("replaced", f"{self.engine.name} has stopped: {why}", "error")
        await self._health.drain()
        self.when_replaced()

    def tell_lease(self, is_missing: bool) -> None:
        """Health checks hear whether the owner has no lease on its name."""
        self._health.tell_soon("no lease", is_missing)

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

    async def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Stops: ends every connection, and waits at most so many seconds for threads that still run hosted code.

        What has not ended then is named in the log, and goes on in threads that end with the process at the latest.
        """
        self.engine.gate.state = Gate.State.STOPPED
        for each in self._periodic:
            await each.end()
        await self._expiry.end()
        # Before gRPC, whose streams stand beside the direct connections: the last answers are still read.
        await self.servicer.direct.close()
        if self._server is not None:
            await self._server.stop(0)
        await self.servicer.shared_memory.close()
        self.servicer.close()
        await BLOCKING.run(self.engine.close, seconds)
        # Late, because until then it can be asked how far the end has come.
        if self._web is not None:
            await self._web.stop()
        if self._keeper is not None:
            self._keeper.close()

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
        await self._web.start(None if self._certificates is None else self._certificates.changing_context())
        _log.info("%s serves a page at %s/ and metrics at /metrics", self.engine.name, self.http_url)

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
