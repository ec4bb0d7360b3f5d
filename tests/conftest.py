"""Fixtures: real owners and trainers, on ports that the system chooses."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import json
import logging
import multiprocessing
import os
import random
import signal
import sys
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, closing, contextmanager
from functools import cache, partial

import hypothesis
import numpy as np
import pytest
import torch
import typer.testing
from typer.main import get_command

import trainer_client as tc
from ps_service.durability import keeper
from ps_service.durability.log.log import Log
from ps_service.engine import Engine
from ps_service.server import Server
from ps_wire.limits import MIB, Limits
from tests import hosted_models
from tests.allowed import allowed
from tests.forking import shared
from tests.forking.process import ROOT, AsyncForked, Forking
from tests.forking.programs import forked_programs as forked
from tests.ports import ReservedPort

__all__ = ["ROOT", "SERVE", "OwnerProcess", "StartOwner", "StartProcess"]

StartOwner = Callable[..., "asyncio.Future[Server]"]


def pytest_configure(config: pytest.Config) -> None:
    """Has this process and those that it starts end by Ctrl-C, which shells let programs in the background ignore."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Collection makes half a million objects and no garbage.
    gc.disable()
    if "FORKING_PYTHON" in os.environ:
        _start_interpreters()
    shared.use(config)


def _start_interpreters() -> None:
    """Has this process, which was forked, start real interpreters as long as a test asks for nothing else."""
    sys.executable = os.environ["FORKING_PYTHON"]
    multiprocessing.set_executable(sys.executable)
    for name in ("FORKING_PYTHON", "FORKING_LAUNCHER", "FORKING_ADDRESS"):
        os.environ.pop(name, None)


# How long examples take says something about the machine: neither a deadline nor a check of their making. The profile
# `repeatable` tries the same examples in every run, few of them; `search` looks for new ones.
hypothesis.settings.register_profile(
    "search", max_examples=1000, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile(
    "repeatable", hypothesis.settings.get_profile("search"), max_examples=60, derandomize=True
)
hypothesis.settings.load_profile("repeatable")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Gives each test the same random numbers in every run, alone and after any others."""
    seed = zlib.crc32(item.nodeid.encode())
    random.seed(seed)
    np.random.seed(seed)
    # For each kind of device that has not begun, torch.manual_seed keeps a stack trace: longer than many a test takes.
    (torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed)(seed)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts whole programs first, then files whose tests start processes: few files that take long, for which one worker
    would wait at the end. Their tests wait for each other's processes, while those of other files compute."""
    starting = {item.path for item in items if "forking" in getattr(item, "fixturenames", ())}

    def turn(item: pytest.Item) -> int:
        return 0 if {"examples", "benchmarks"} & set(item.path.parts) else 1 if item.path in starting else 2

    items.sort(key=turn)


def pytest_collection_finish() -> None:
    """Keeps what all tests share, half a million objects, out of every search for garbage from here on."""
    # pytest gives its handlers to each logger that keeps its messages, three times a test: torch has 50 of them.
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.startswith("torch"):
            logger.propagate = True
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def quick_collect() -> None:
    """Keeps what is there before a module's tests, of all others too, out of their searches for garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def small_log_files() -> Iterator[None]:
    """Has owners in this process keep their logs in files of 4 MiB, and not of 64: each start allocates a whole one.

    Owners in processes of their own have the files that they always have.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeper, "Log", partial(Log, segment_bytes=4 * MIB))
        yield


@pytest.fixture(scope="session", autouse=True)
def commands_once() -> Iterator[None]:
    """Has the commands of an application be made once, and not for each call: those of `ps-service` take 25 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(get_command))
        yield


@pytest.fixture
async def start_owner() -> AsyncIterator[StartOwner]:
    """Starts owners in this process: `await start_owner("ps0", limits=Limits(...))`."""
    async with AsyncExitStack() as stack:

        async def start(name: str = "ps0", limits: Limits | None = None) -> Server:
            engine = Engine(name, allowed(hosted_models), limits=limits or Limits())
            return await stack.enter_async_context(Server(engine, direct_port=0))

        yield start  # type: ignore[misc]


@pytest.fixture
async def owner(start_owner: StartOwner) -> Server:
    """An owner called ps0, in this process, over real gRPC."""
    return await start_owner("ps0")


@pytest.fixture
async def ps(owner: Server) -> AsyncIterator[tc.Client]:
    """A trainer of `owner`."""
    async with tc.connect(owner.address) as client:
        yield client


@pytest.fixture
async def ps2(owner: Server) -> AsyncIterator[tc.Client]:
    """Another trainer of `owner`."""
    async with tc.connect(owner.address) as client:
        yield client


@pytest.fixture
async def pair(start_owner: StartOwner) -> AsyncIterator[tc.Client]:
    """A trainer of two owners, ps0 and ps1."""
    first, second = await start_owner("ps0"), await start_owner("ps1")
    async with tc.connect(first.address, second.address) as client:
        yield client


@pytest.fixture(scope="session")
def forking() -> Iterator[Forking]:
    """Starts processes that have imported everything already."""
    within = os.environ.pop(shared.SHARED, None)
    with closing(Forking(json.loads(within) if within else None)) as forking:
        yield forking


@pytest.fixture
def forked_programs(forking: Forking) -> Iterator[None]:
    """What a test starts with `sys.executable` is forked, and has ended after it: torch is imported once for all."""
    with forked(forking):
        yield


class OwnerProcess:
    """A `ps-service serve` as a process of its own.

    Attributes:
        address: Where it listens.
        process: The process.
    """

    def __init__(self, process: AsyncForked, address: str) -> None:
        self.process = process
        self.address = address


StartProcess = Callable[..., "asyncio.Future[OwnerProcess]"]
SERVE = ("ps_service", "serve", "--listen", "127.0.0.1:0", "--import", "tests.hosted_models")


@pytest.fixture
async def start_process(forking: Forking) -> AsyncIterator[StartProcess]:
    """Starts owners as processes: `await start_process("--name", "ps0")`; ends what is left of them."""
    async with AsyncExitStack() as stack:

        async def start(*flags: str) -> OwnerProcess:
            # Nobody else gets its port if it ends and is started again there.
            listen = () if "--listen" in flags else ("--listen", stack.enter_context(ReservedPort()).address)
            process = await stack.enter_async_context(aclosing(await forking.begin(*SERVE, *listen, *flags)))
            line = (await process.stdout.readline()).decode()
            assert " is serving on " in line, line
            return OwnerProcess(process, line.split()[-1])

        yield start  # type: ignore[misc]


@pytest.fixture
async def owner_process(start_process: StartProcess) -> OwnerProcess:
    """An owner called ps0, as a process of its own."""
    return await start_process("--name", "ps0")


@contextmanager
def process_address(forking: Forking) -> Iterator[str]:
    """The address of an owner process that lives as long as the block."""
    with forking.start(*SERVE) as process:
        line = process.stdout.readline()
        assert " is serving on " in line, line
        yield line.split()[-1]


@pytest.fixture
def owner_process_address(forking: Forking) -> Iterator[str]:
    """The address of an owner process, for tests of the blocking client, which have no event loop."""
    with process_address(forking) as address:
        yield address


@pytest.fixture(scope="module")
def shared_process_address(forking: Forking) -> Iterator[str]:
    """The same for all tests of a module, whose objects have names of their own."""
    with process_address(forking) as address:
        yield address


@pytest.hookimpl(trylast=True)
def pytest_exception_interact() -> None:
    """Sets the watchdog anew, which pytest stops at a failure: the end of a test that failed may hang, too."""
    faulthandler.dump_traceback_later(120, exit=True, file=sys.__stderr__)
