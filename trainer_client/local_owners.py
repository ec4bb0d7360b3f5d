"""Owners inside this process: nothing to start for a first try, for a notebook, and for tests."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server
from ps_wire.codec.names import module_name
from ps_wire.errors import InvalidArgumentError
from trainer_client.client.client import Client
from trainer_client.client.connect import Connecting
from trainer_client.rpc.agent import Agent
from trainer_client.rpc.own_owner import Offer, imported
from trainer_client.rpc.peers import GroupPeers
from trainer_client.rpc.planning import Plan
from trainer_client.session.settings import Settings
from trainer_client.transport.in_process import MemoryConnector

if TYPE_CHECKING:
    import torch

    from ps_wire.connections.connection import Connector

F = TypeVar("F", bound=Callable[..., Any])

_LISTEN: Final = "127.0.0.1:0"

_DRAIN_SECONDS: Final = 2.0
"""Longest time that owners wait at the end for passes of other processes."""


class Offered:
    """The classes and functions that a program has handed to its local owners: each under a name of its own, so that
    a class that is defined again is another one. Safe from several threads."""

    def __init__(self, imports: Iterable[Offer]) -> None:
        self.allowed: Final = AllowList()
        self._names: dict[Any, str] = {}
        self._lock = threading.Lock()
        for each in map(imported, imports):
            if isinstance(each, ModuleType):
                self.allowed.add(each)
            else:
                self.named(each)

    def named(self, thing: Any) -> Any:
        """A class or function, or a name instead of it if other processes could not find it. It may be used by that
        name from then on. Names, and what is torch's, are returned as they are."""
        if not isinstance(thing, (type, FunctionType)) or thing.__module__.partition(".")[0] == "torch":
            return thing
        plain = f"{module_name(thing.__module__)}.{thing.__qualname__}"
        if isinstance(thing, FunctionType) and "<" in plain:
            return thing  # there may be any number of them, and each would stay
        with self._lock:
            name = self._names.get(thing)
            if name is None:
                taken = sum(each.partition("#")[0] == plain for each in self._names.values())
                name = self._names[thing] = f"{plain}#{taken + 1}" if taken else plain
                self.allowed.admit(thing, name)
        return name if "<" in name or "#" in name else thing


class Owners:
    """The owners of one program, which are members of one group."""

    def __init__(self, offered: Offered, engines: Callable[[AllowList], list[Engine]], http: str) -> None:
        self.offered = offered
        self._engines = engines
        self._http = http
        self._agents: list[Agent] = []

    @property
    def servers(self) -> list[Server]:
        return [each.server for each in self._agents]

    async def start(self) -> None:
        """Starts all, or none. Raises as `Server.start`."""
        try:
            for engine in self._engines(self.offered.allowed):
                server = Server(engine, _LISTEN, http="" if self._agents else self._http, direct_port=0)
                await server.start()
                agent = Agent(server, Settings())
                directory = self._agents[0].server.address if self._agents else ""
                self._agents.append(agent)
                await agent.join(Plan(directory, is_owner=True), GroupPeers(agent))
        except BaseException:
            await self.end()
            raise

    async def end(self) -> None:
        """Drains all. The first one keeps the directory, and is the last."""
        while self._agents:
            await self._agents.pop().leave(_DRAIN_SECONDS)


def _handing_over(method: F) -> F:
    """A method whose first argument may be a class or function, which the owners may use from then on."""
    first = list(inspect.signature(method).parameters)[1]

    @functools.wraps(method)
    def handing_over(self: LocalClient, *args: Any, **kwargs: Any) -> Any:
        named = self._local.offered.named
        if args:
            args = (named(args[0]), *args[1:])
        elif first in kwargs:
            kwargs[first] = named(kwargs[first])
        return method(self, *args, **kwargs)

    return handing_over  # type: ignore[return-value]


class LocalClient(Client):
    """A client of owners in its own process. Classes and functions that it is given need not be marked `@hosted` or
    `@remote`, nor be in a module; methods other than `forward` still have to be marked."""

    def __init__(self, connectors: Sequence[Connector], settings: Settings, owners: Owners) -> None:
        super().__init__(connectors, settings)
        self._local = owners

    module = _handing_over(Client.module)
    create = _handing_over(Client.create)
    call = _handing_over(Client.call)
    remote = _handing_over(Client.remote)
    optimizer = _handing_over(Client.optimizer)
    scheduler = _handing_over(Client.scheduler)

    @property
    def address(self) -> str:
        """Where other processes of this host reach the first owner: `tc.connect(address)`, or
        `tc.connect(directory=address)` for all of them."""
        return self._local.servers[0].address

    @property
    def http_url(self) -> str:
        """The page of the owners; empty without `http=`."""
        return self._local.servers[0].http_url

    async def close(self, error: BaseException | None = None) -> None:
        """Closes the client, and ends the owners."""
        try:
            await super().close(error)
        finally:
            await self._local.end()


class Local(Connecting):
    """The result of `local`, which is used as that of `connect`."""

    def __init__(self, owners: Owners, settings: Settings) -> None:
        super().__init__((), settings)
        self._owners = owners

    async def __aenter__(self) -> Client:
        await self._owners.start()
        connectors = [MemoryConnector(each.servicer.serve) for each in self._owners.servers]
        client = LocalClient(connectors, self._settings, self._owners)
        try:
            await client.open()
        except BaseException:
            await client.close()
            raise
        self._client = client
        return client


def local(
    *,
    imports: Iterable[Offer] = (),
    owners: int = 1,
    data_dir: str | Path | None = None,
    http: str = "",
    device: str | torch.device | None = None,
    threads: int = 0,
    timeout: float | None = 60.0,
    seed: int | None = None,
) -> Local:
    """Starts owners inside this process, and connects to them without a socket.

        with tc.local() as ps: ...              # methods block
        async with tc.local() as ps: ...        # methods return awaitables

    Nothing has to be started before, and nothing stays behind. The same program uses a cluster when this line becomes
    `tc.connect(...)`; its classes are then in a module that the owners import, and marked `@hosted`. Other processes of
    this host join at `ps.address`. Owners share this process's interpreter lock with the trainer: for speed, start them
    as processes of their own.

    Args:
        imports: Modules or their names, whose marked classes and functions trainers may name, as with
            `ps-service serve --import`; and classes and functions. What the client is given need not be among them, but
            what a `data_dir` from before has objects of.
        owners: How many; they are called ps0, ps1 and so on.
        data_dir: Folder for their logs and checkpoints, from which they go on; each has a folder of its name in it.
        http: Host and port of the page and the metrics; port 0 takes a free one, see `ps.http_url`.
        device: Device of hosted modules; None is the CPU.
        threads: Compute threads of each owner; 0 chooses.
        timeout: Default timeout of calls, in seconds; None is no limit.
        seed: Seeds the calls, as `Client.manual_seed` does.

    Raises:
        InvalidArgumentError: `owners` is no number, or less than 1.
        ImportError: A module of `imports` cannot be imported.
        ValueError: A module of `imports` has nothing that is marked.
        OSError: When entered: the address of `http` is taken, or the data directory cannot be used.
        CheckpointError: When entered: what is in the data directory cannot be continued.
    """
    if not isinstance(owners, int) or owners < 1:
        raise InvalidArgumentError(f"owners is {owners!r}; at least one is needed")
    import torch

    settings = Settings(timeout)
    settings.seeding.begin(seed)
    where = None if data_dir is None else Path(data_dir)

    def engines(allowed: AllowList) -> list[Engine]:
        return [
            Engine(
                name,
                allowed,
                device=None if device is None else torch.device(device),
                threads=threads,
                data_dir=None if where is None else where / name,
            )
            for name in (f"ps{number}" for number in range(owners))
        ]

    return Local(Owners(Offered(imports), engines, http), settings)
