"""Tests each state of the page: empty, loading, live, paused, stale, lost connection, and owners that are lost."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator

import pytest
import torch

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.monitoring import page_feed
from ps_service.server import Server
from tests import hosted_models
from tests.conftest import StartProcess
from tests.ports import ReservedPort
from tests.ps_service.monitoring.chromium.browser import Browser

pytestmark = pytest.mark.browser

HERE = "127.0.0.1:0"
STATE = "document.getElementById('live').dataset.state"
BANNER = "document.getElementById('banner').hidden ? '' : document.getElementById('banner').textContent"
READY = "!document.getElementById('charts').hidden"


def engine() -> Engine:
    return Engine("ps0", AllowList([hosted_models]))


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server(engine(), http=HERE) as server:
        yield server


def rows(id: str) -> str:
    return f"[...document.querySelectorAll('#{id} tbody tr')].map((row) => row.innerText)"


def cell(id: str, row: int, key: str) -> str:
    place = f"[...document.querySelectorAll('#{id} thead th')].findIndex((each) => each.dataset.key === '{key}')"
    return f"document.querySelectorAll('#{id} tbody tr')[{row}]?.children[{place}].innerText"


async def test_an_owner_without_trainers_says_what_to_do(browser: Browser, server: Server) -> None:
    await browser.open(f"http://{server.http_address}/")
    await browser.until(f"{STATE} === 'live' && {READY}")
    empty = await browser.ask(
        "[...document.querySelectorAll('.empty')].filter((e) => !e.hidden).map((e) => e.innerText)"
    )
    assert f'No trainer is connected. Start one with trainer_client.connect("{server.address}").' in empty
    assert {"No optimizer has been made yet.", "No table has been made yet.", "No errors and no warnings."} <= set(
        empty
    )
    assert await browser.ask(BANNER) == ""
    assert browser.complaints() == []


async def test_training_is_shown_live(browser: Browser, server: Server) -> None:
    await browser.open(f"http://{server.http_address}/")
    await browser.until(READY)
    async with tc.connect(server.address) as ps:
        net = await ps.module("torch.nn.Linear", 2, 1, name="net")
        opt = await ps.optimizer("torch.optim.SGD", net.parameters(), lr=0.125, name="sgd")
        for _ in range(3):
            async with ps.context() as ctx:
                await ctx.backward((await net(torch.ones(1, 2))).sum(), step=opt)
        await browser.until(f"{rows('trainers')}.length === 1")
        assert await browser.until(cell("trainers", 0, "steps"), holds="3".__eq__)
        await browser.until(f"{cell('optimizers', 0, 'version')} === '3'")
        assert await browser.ask(cell("optimizers", 0, "lr")) == "0.125"
        await browser.until(f"{rows('events')}.some((text) => text.includes('joined'))")
        await browser.until(f"{rows('operations')}.some((text) => text.startsWith('backward'))")
    assert await browser.until("document.querySelectorAll('.chart canvas').length") == 4
    assert browser.complaints() == []
    loaded = await browser.ask("performance.getEntriesByType('resource').map((each) => new URL(each.name).origin)")
    assert set(loaded) == {f"http://{server.http_address}"}


async def test_a_page_that_has_not_heard_yet_says_so(
    browser: Browser, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server._web is not None
    monkeypatch.setattr(server._web.page.feed, "_everything", lambda: iter(()))
    monkeypatch.setattr(server._web.page.feed, "send", lambda _: None)
    await browser.open(f"http://{server.http_address}/")
    assert await browser.ask("document.getElementById('live-text').textContent") == "Connecting"
    assert await browser.ask(f"{rows('owners')}.length") == 0
    assert not await browser.ask(READY)


async def test_a_page_whose_owner_hangs_is_stale_and_goes_on_later(
    browser: Browser, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server._web is not None
    await browser.open(f"http://{server.http_address}/")
    await browser.until(f"{STATE} === 'live' && {READY}")
    send = server._web.page.feed.send
    monkeypatch.setattr(server._web.page.feed, "send", lambda _: None)
    await browser.until(f"{STATE} === 'stale'")
    assert "the owner is busy or hangs" in await browser.ask(BANNER)
    assert await browser.ask("document.body.classList.contains('old')")
    monkeypatch.setattr(server._web.page.feed, "send", send)
    await browser.until(f"{STATE} === 'live'")
    await browser.until(f"({BANNER}) === ''")


async def test_a_lost_connection_is_told_and_found_again(browser: Browser) -> None:
    with ReservedPort() as port:
        async with Server(engine(), http=port.address):
            await browser.open(f"http://{port.address}/")
            await browser.until(f"{STATE} === 'live' && {READY}")
        await browser.until(f"{STATE} === 'lost'")
        assert "Connection lost. Trying again" in await browser.ask(BANNER)
        assert "Connection lost" in await browser.ask("document.getElementById('announcer').textContent")
        async with Server(engine(), http=port.address):
            await browser.until(f"{STATE} === 'live'")
            await browser.until(f"{rows('owners')}.length === 1")


async def test_a_page_too_many_says_so_and_tries_again(
    browser: Browser, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_feed, "MOST_STREAMS", 0)
    await browser.open(f"http://{server.http_address}/")
    await browser.until(f"{STATE} === 'refused'")
    assert "too many pages are open" in await browser.ask(BANNER)
    monkeypatch.setattr(page_feed, "MOST_STREAMS", 1)
    await browser.until(f"{STATE} === 'live'")


async def test_paused_numbers_stand_still(browser: Browser, server: Server) -> None:
    await browser.open(f"http://{server.http_address}/")
    await browser.until(f"{STATE} === 'live' && {READY}")
    await browser.ask("document.getElementById('pause').click()")
    assert await browser.ask(STATE) == "paused"
    async with tc.connect(server.address):
        shown = await browser.ask("document.getElementById('footer-time').textContent")
        known = server._sampler.sample().number
        while server._sampler._number < known + 2:
            await browser.ask("true")
        assert await browser.ask("document.getElementById('footer-time').textContent") == shown
        assert await browser.ask(f"{rows('trainers')}.length") == 0
        await browser.ask("document.getElementById('pause').click()")
        await browser.until(f"{STATE} === 'live' && {rows('trainers')}.length === 1")


async def test_an_owner_that_dies_while_the_page_is_open_is_shown_as_lost(
    browser: Browser, start_process: StartProcess
) -> None:
    first = await start_process("--name", "ps0", "--directory", "self", "--http", HERE)
    line = (await first.process.stdout.readline()).decode()
    url = line.partition("a page at ")[2].split()[0]
    other = await start_process("--name", "ps1", "--directory", first.address)
    await browser.open(url)
    await browser.until(f"{rows('owners')}.length === 2 && {cell('owners', 1, 'state')} === 'serving'")
    assert await browser.ask("document.querySelector('#tile-owners .value').textContent") == "2 of 2"
    async with tc.connect(first.address, other.address) as ps:
        await ps.module("torch.nn.Linear", 2, 1, owner="ps1")
        await browser.until(f"{cell('trainers', 0, 'owners')} === 'ps0, ps1'")
    other.process.send_signal(signal.SIGKILL)
    await browser.until(f"({cell('owners', 1, 'state')}).startsWith('lost')")
    await browser.until(f"({BANNER}).includes('ps1 does not answer')")
    assert await browser.ask("document.querySelector('#tile-owners .value').textContent") == "1 of 2"
    assert "ps1 is lost" in await browser.ask("document.getElementById('announcer').textContent")
    assert await browser.ask(f"{rows('errors')}.some((text) => text.includes('the owner is lost'))")
    assert await browser.ask(STATE) == "live"
