"""Tests that a client that its program has not closed is warned of, and that its owners hear of the end."""

from __future__ import annotations

import asyncio
import gc
import re
import signal
import time
from contextlib import aclosing

import pytest
import torch

import trainer_client as tc
from ps_service.server import Server
from ps_service.sessions.sessions import SessionState
from tests.forking.process import Forking
from tests.transports import TRANSPORTS
from tests.waiting import until
from trainer_client.session import leaving

WARNING = "was not closed, and its owners keep what it holds until the program ends: use `async with tc.connect"


def sessions(owner: Server) -> list[SessionState]:
    return list(owner.engine.sessions.all())


@pytest.mark.parametrize(
    ("transport", "how"),
    [
        *(("shared_memory", how) for how in ("run", "raises", "stopped", "thread", "blocking")),
        *(("grpc", "run"), ("direct", "blocking")),
    ],
)
async def test_rounds_do_not_wait_for_a_program_that_has_ended(
    owner: Server, forking: Forking, transport: str, how: str
) -> None:
    assert owner.engine.limits.lease_seconds == 30
    command = ("tests.integration.unclosed_trainer", owner.address, transport, how)
    async with tc.connect(owner.address) as ps:
        async with asyncio.timeout(50), aclosing(await forking.begin(*command, errors=True)) as process:
            assert await process.stdout.readline() == b"stepped\n"
            out, errors = await process.communicate()
        assert (process.returncode, out) == (7 if how == "raises" else 0, b"")
        assert len(re.findall(WARNING, errors.decode())) == 1 and "unclosed_trainer.py:" in errors.decode()
        assert "Traceback" not in errors.decode() and "never" not in errors.decode()
        net = await ps.module(torch.nn.Linear, 4, 4, name="net", seed=0)
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, policy=tc.policies.Sync())
        async with asyncio.timeout(50), ps.context() as ctx:
            await ctx.backward((await net(torch.ones(1, 4))).sum(), step=opt)
    told = [each.text for each in owner.engine.events.latest() if each.kind == "left"]
    assert len([each for each in told if f"process {process.pid} " in each]) == 1


@pytest.mark.parametrize("how", ["run", "stopped", "blocking"])
async def test_the_end_does_not_wait_for_an_owner_that_does_not_answer(forking: Forking, how: str) -> None:
    serve = ("ps_service", "serve", "--listen", "127.0.0.1:0", "--name", "ps0")
    async with asyncio.timeout(60), aclosing(await forking.begin(*serve)) as owner:
        address = (await owner.stdout.readline()).decode().split()[-1]
        command = ("tests.integration.unclosed_trainer", address, "grpc", how)
        async with aclosing(await forking.begin(*command, errors=True)) as process:
            assert await process.stdout.readline() == b"stepped\n"
            owner.send_signal(signal.SIGSTOP)
            begun = time.monotonic()
            await process.wait()
        assert process.returncode == 0 and time.monotonic() - begun < leaving.LEAVE_SECONDS + 30


async def test_a_client_that_is_collected_is_warned_of_and_its_handles_work_on(owner: Server) -> None:
    async def net() -> tc.RemoteModule:
        ps = await tc.connect(owner.address)
        return await ps.module(torch.nn.Linear, 4, 4)

    with pytest.warns(ResourceWarning, match=WARNING) as caught:
        handle = await net()
        gc.collect()
    assert f"test_unclosed_clients.py:{net.__code__.co_firstlineno + 1}" in str(caught[0].message)
    assert (await handle(torch.ones(1, 4))).shape == (1, 4)
    await handle.session.close()


async def test_a_client_that_is_closed_is_not_warned_of(owner: Server) -> None:
    ps = await tc.connect(owner.address)
    await ps.close()
    del ps
    with pytest.raises(tc.errors.UnavailableError):
        await tc.connect("127.0.0.1:1", connect_timeout=0.01)
    gc.collect()


def _blocking(address: str) -> None:
    ps = tc.connect(address).__enter__()
    assert ps.call(torch.add, 1, 2) == 3
    ps.close()
    with pytest.raises(tc.errors.ClosedError):
        ps.call(torch.add, 1, 2)
    ps.close()
    with tc.connect(address) as inner:
        inner.close()
    del ps, inner
    gc.collect()


async def test_the_blocking_client_has_a_close(owner: Server) -> None:
    await asyncio.to_thread(_blocking, owner.address)
    await until(lambda: not sessions(owner))


async def test_a_blocking_client_that_is_collected_is_warned_of(owner: Server) -> None:
    def drop() -> None:
        ps = tc.connect(owner.address, **TRANSPORTS["grpc"]).__enter__()  # type: ignore[arg-type]
        kept.append(ps.unwrapped.session())
        del ps
        gc.collect()

    kept: list[object] = []
    with pytest.warns(ResourceWarning, match=WARNING):
        await asyncio.to_thread(drop)
    session = kept.pop()
    asyncio.run_coroutine_threadsafe(session.close(), session.loop).result(10)  # type: ignore[attr-defined]
