"""Tests the health check with owners that serve, that drain, and that cannot be reached."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.server import Server
from tests.integration.tls.authority import Authority

HEALTH = str(Path(__file__).resolve().parents[2] / "deploy" / "health.py")
Check = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
async def check() -> Check:
    """Runs the check: `code, out, error = await check(address)`."""

    async def check(*arguments: str, **variables: str) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, HEALTH, *arguments,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **variables},
        )  # fmt: skip
        out, error = await process.communicate()
        return process.returncode or 0, out.decode(), error.decode()

    return check


async def test_an_owner_that_serves_is_healthy(owner: Server, check: Check) -> None:
    assert await check(owner.address) == (0, f"the owner at {owner.address} is serving\n", "")


async def test_without_an_address_it_asks_beside_it(owner: Server, check: Check) -> None:
    port = owner.address.rpartition(":")[2]
    code, out, _ = await check(PS_LISTEN=f"0.0.0.0:{port}")
    assert (code, out) == (0, f"the owner at 127.0.0.1:{port} is serving\n")


async def test_an_owner_with_tls_is_asked_over_tls(check: Check, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = authority.server(asks=True)
    async with Server(Engine("ps0"), tls=tls) as owner:
        files = {"PS_TLS_CERT": str(tls.cert), "PS_TLS_KEY": str(tls.key), "PS_TLS_CLIENT_CA": str(authority.ca)}
        assert (await check(owner.address, **files))[0] == 0
        assert (await check(owner.address))[0] == 1


async def test_an_owner_that_drains_is_not(owner: Server, ps: tc.Client, check: Check) -> None:
    gate = await ps.create("tests.hosted_models.Gate", name="gate")
    hosted = owner.engine.registry.named("gate").value
    waiting = gate.wait()
    await gate.wait_for(1)
    draining = asyncio.create_task(owner.drain(60))
    try:
        code, out, error = await check(owner.address)
    finally:
        hosted.open()
        await asyncio.gather(waiting, draining)
    assert (code, out) == (1, "")
    said = "takes no work: NOT_SERVING; is it draining, or out of threads (see its log)?"
    assert error == f"the owner at {owner.address} {said}\n"


async def test_an_address_without_a_server_is_reported(check: Check) -> None:
    code, out, error = await check("127.0.0.1:1", "--timeout", "5")
    assert (code, out) == (1, "")
    assert error.startswith("no owner answers at 127.0.0.1:1: UNAVAILABLE, ")


async def test_a_server_that_does_not_answer_is_not_waited_for(check: Check) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        code, _, error = await check(f"127.0.0.1:{port}", "--timeout", "0.2")
    assert (code, error.split(",")[0]) == (1, f"no owner answers at 127.0.0.1:{port}: DEADLINE_EXCEEDED")


def test_the_health_check_does_not_import_torch() -> None:
    code = (
        f"import runpy, sys; runpy.run_path({HEALTH!r}); print({{'torch', 'ps_wire', 'ps_service'}} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
