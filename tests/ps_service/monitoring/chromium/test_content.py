"""Tests what the page shows: much of it, untrusted texts, the numbers of the owner, and that everybody can use it."""

from __future__ import annotations

import os
import random
import re
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.hosting import creation
from ps_service.hosting.allowlist import AllowList
from ps_service.measures.histogram import merged, quantile
from ps_service.metrics.counters import DURATION_BOUNDS
from ps_service.monitoring import page_formats
from ps_service.quotas.quota import QuotaFile
from ps_service.server import Server
from tests import hosted_models
from tests.ps_service.monitoring.chromium.browser import Browser

pytestmark = pytest.mark.browser

HERE = "127.0.0.1:0"
READY = "!document.getElementById('charts').hidden"
EVIL = "<img src=x onerror='window.evil=1'><script>window.evil=1</script>"


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server(Engine("ps0", AllowList([hosted_models])), http=HERE) as server:
        yield server


async def opened(browser: Browser, server: Server) -> None:
    await browser.open(f"http://{server.http_address}/")
    await browser.until(READY)


async def only_modules(browser: Browser, server: Server) -> None:
    """A page that can import the modules of the owner's page, and draws nothing."""
    await browser.open(f"http://{server.http_address}/static/samples.js")


def trainers(engine: Engine, number: int) -> None:
    """Trainers that are connected and have a name."""
    for index in range(number):
        session = engine.sessions.open(os.urandom(16))
        session.streams, session.transport, session.peer = 1, "grpc", f"10.0.{index // 256}.{index % 256}:4000"
        session.process = session.process._replace(program=f"train_{index:04}.py")


# Much


async def test_a_thousand_trainers_are_fifty_rows_and_can_be_found(browser: Browser, server: Server) -> None:
    trainers(server.engine, 1000)
    await opened(browser, server)
    rows = "#trainers tbody tr"
    await browser.until("document.querySelectorAll(arguments[0]).length === 50", rows)
    assert await browser.text("#tile-trainers .value") == "1,000"
    assert await browser.text("#trainers .more-rows") == "Show more (950 left)"
    await browser.click("#trainers .more-rows")
    assert await browser.count(rows) == 150
    await browser.set("#trainers input", "train_0777", "input")
    assert await browser.count(rows) == 1
    assert (await browser.text(f"{rows} th")).startswith("train_0777.py")
    assert await browser.text("#trainers .count") == "1 of 1,000"
    await browser.set("#trainers input", "", "input")
    # A new filter shows the first ones again. However many are sorted, no others are drawn.
    await browser.click("#trainers thead button")
    assert await browser.count(rows) == 50
    assert browser.complaints() == []


async def test_ten_thousand_objects_are_a_number(browser: Browser, server: Server) -> None:
    for index in range(10_000):
        creation.create(server.engine, "tests.hosted_models.Counter", (), {}, name=f"counter{index}")
    await opened(browser, server)
    await browser.until("document.querySelector('#owners tbody tr').innerText.includes('10,000')")
    size = await browser.ask("fetch('/status.json').then((answer) => answer.text()).then((text) => text.length)")
    assert size < 1 << 20
    assert browser.complaints() == []


async def test_quotas_are_there_where_there_are_any(browser: Browser, server: Server, tmp_path: Path) -> None:
    await opened(browser, server)
    assert await browser.ask("document.getElementById('quotas').hidden")
    file = tmp_path / "quotas.toml"
    file.write_text("[all]\nobject_bytes = 16384\nobjects = 4\n")
    limited = Server(Engine("ps0", AllowList([hosted_models]), quotas=QuotaFile(file)), http=HERE)
    async with limited, tc.connect(limited.address) as ps:
        await ps.module("torch.nn.Linear", 31, 32, name="net")
        await opened(browser, limited)
        cells = "(row) => [...row.cells].map((cell) => cell.innerText)"
        rows = f"[...document.querySelectorAll('#quotas tbody tr')].map({cells})"
        await browser.until(f"JSON.stringify({rows}).includes('25 %')")
        assert await browser.ask(rows) == [
            ["all", "objects", "ps0", "1", "4", "25 %"],
            ["all", "object_bytes", "ps0", "4.0 KiB", "16.0 KiB", "25 %"],
        ]
        async with aiohttp.ClientSession() as http, http.get(f"http://{limited.http_address}/") as response:
            assert re.search("object_bytes</td><td>ps0</td><td class=.num.>4.0 KiB", await response.text())
    assert browser.complaints() == []


# Untrusted


async def test_what_trainers_choose_is_shown_as_it_is(browser: Browser, server: Server) -> None:
    engine = server.engine
    creation.create(engine, "torch.nn.Linear", (1, 1), {}, name="net")
    trainers(engine, 1)
    session = engine.sessions.all()[0]
    session.process = session.process._replace(program=EVIL, host_name=EVIL)
    engine.events.note("raised", EVIL, "error", subject=EVIL, traceback=f"Traceback\n{EVIL}")
    await opened(browser, server)
    await browser.until("document.querySelectorAll('#trainers tbody tr, #errors tbody tr').length === 2")
    text = await browser.ask("document.querySelector('#trainers tbody th').innerText")
    assert text.startswith(EVIL)
    assert await browser.ask("document.querySelector('#errors summary').textContent") == EVIL
    assert await browser.ask("document.querySelector('#errors pre').textContent") == f"Traceback\n{EVIL}"
    assert await browser.ask("document.querySelectorAll('main img, main script').length") == 0
    assert await browser.ask("window.evil") is None


# The same as the owner


async def test_the_browser_writes_numbers_as_the_owner_does(browser: Browser, server: Server) -> None:
    await only_modules(browser, server)
    whole = [0, 1, 9, 10, 59, 60, 100, 999, 1023, 1024, 1536, 3599, 3600, 4096, 86400, 10**6, 123456789, 2**41]
    broken = [0, 0.004, 0.51, 1, 9.99, 9.996, 12.34, 99.94, 100, 1234.6]
    durations = [0, 1e-6, 8.51e-5, 0.00099, 0.0012, 0.0123, 0.5, 0.9999, 1, 61.5]
    cases = [[name, value] for name in ("rate", "count", "size", "span", "steps") for value in whole]
    cases += [[name, value] for name in ("rate", "steps") for value in broken]
    cases += [["seconds", value] for value in durations]
    cases += [["value", value] for value in (*whole, *broken, *durations, -0.25, 0.123456789, 1234567.8, 1e-4, 3e300)]
    code = """import('/static/formats.js').then(
      (formats) => arguments[0].map(([name, value]) => formats[name](value)))"""
    found = await browser.ask(code, cases)
    expected = [page_formats.FILTERS[str(name)](value) for name, value in cases]
    assert dict(zip(map(str, cases), found, strict=True)) == dict(zip(map(str, cases), expected, strict=True))


async def test_the_browser_estimates_quantiles_as_the_owner_does(browser: Browser, server: Server) -> None:
    await only_modules(browser, server)
    draws = random.Random(5)
    histograms = [[draws.choice((0, 0, 0, 1, 7)) for _ in range(len(DURATION_BOUNDS) + 1)] for _ in range(50)]
    code = """import('/static/samples.js').then(
      (module) => arguments[0].map((counts) => module.quantile(0.9, counts, arguments[1])))"""
    found = await browser.ask(code, histograms, DURATION_BOUNDS)
    for counts, value in zip(histograms, found, strict=True):
        sparse = merged([[part for pair in enumerate(counts) for part in pair]])
        assert value == pytest.approx(quantile(0.9, sparse, DURATION_BOUNDS), rel=1e-12)


async def test_the_charts_add_up_what_the_samples_say(browser: Browser, server: Server) -> None:
    await only_modules(browser, server)
    sample = "[index + 1, 1000 + index, 1, 5, [0, 5], {call: [0, 3, 2]}, 0, 0, 1, 0, 1024, 0, 0, 0, 0, 0, 3]"
    code = f"""import('/static/samples.js').then((module) => {{
      const group = new module.Group();
      const facts = (name) => ({{ name, state: 'serving', incarnation: 'a', since: 0, why: ''}});
      const samples = Array.from({{length: 20}}, (_, index) => {sample});
      group.take({{now: 1021, owners: [facts('ps0'), facts('ps1')], unseen: 0, alone: ''}});
      group.take({{samples: {{ps0: samples, ps1: samples}}}});
      group.take({{samples: {{ps0: samples}}}}); // told twice
      const xs = group.grid(30);
      const recent = group.recent([...group.owners.values()]);
      return {{xs: [xs[0], xs[30]], steps: group.steps('', xs)[1].values, latency: group.latency('', xs, 5),
               staleness: group.staleness('ps0', xs)[1].values, rate: recent.steps, passes: recent.passes,
               requests: recent.requests}};
    }})"""
    found = await browser.ask(code)
    assert found["xs"] == [990, 1020]
    assert found["steps"] == [None] * 10 + [5] * 20 + [None]
    (call,) = found["latency"]
    p99 = quantile(0.99, {3: 2}, DURATION_BOUNDS)
    assert call["label"] == "call"
    assert call["values"] == [None] * 10 + [pytest.approx(p99)] * 21
    assert found["staleness"] == [None] * 10 + [0] * 21
    assert (found["rate"], found["requests"]) == (pytest.approx(10), pytest.approx(4))
    assert found["passes"] == pytest.approx(3), "those of the owner with most, and not their sum"


async def test_an_owner_that_started_anew_while_it_was_not_heard_begins_anew(browser: Browser, server: Server) -> None:
    await only_modules(browser, server)
    code = """import('/static/samples.js').then((module) => {
      const group = new module.Group();
      const sample = (number) => [number, 1000 + number, 1, 5, [], {}, 0, 0, 1, 0, 1024, 0, 0, 0, 0, 0, 3];
      const told = (fields) => group.take(
        {now: 1021, owners: [{ name: 'ps0', state: 'serving', since: 0, why: '', ...fields}], unseen: 0, alone: ''});
      told({incarnation: 'a'});
      group.take({samples: {ps0: [sample(20)]}});
      const before = group.owners.get('ps0');
      told({state: 'asked'});
      told({incarnation: 'a'});
      const same = group.owners.get('ps0') === before;
      told({state: 'asked'});
      told({incarnation: 'b'});
      group.take({samples: {ps0: [sample(1)]}});
      return [same, group.owners.get('ps0').last, group.events('').filter((each) => each.kind === 'started').length];
    })"""
    assert await browser.ask(code) == [True, 1, 1]


async def test_a_legend_tells_the_latest_value_and_how_old_it_is(browser: Browser, server: Server) -> None:
    server._sampler.sample()
    await opened(browser, server)
    code = """import('/static/charts.js').then((module) => {
      const root = document.getElementById('chart-latency').cloneNode(true);
      document.body.append(root);
      const chart = new module.Chart(root, {format: (value) => value === null ? 'none' : String(value)});
      const xs = Array.from({length: 60}, (_, index) => 1000 + index);
      const until = (last) => xs.map((_, index) => index <= last ? index : null);
      const series = [59, 57, 40, -1].map((last, index) => ({label: String(index), values: until(last)}));
      chart.show(xs, series, []);
      const told = [...root.querySelectorAll('.legend b')].map((each) => each.textContent);
      root.remove();
      return told;
    })"""
    assert await browser.ask(code) == ["59", "57", "40, 19 s ago", "none"]


async def test_a_trainer_that_is_slow_is_named(browser: Browser, server: Server) -> None:
    await only_modules(browser, server)
    code = """import('/static/trainers.js').then((module) => {
      const trainer = (id, rate) => ({id, steps_per_second: rate, steps: 9, connected: true,
        member: '', away_seconds: 0,
        request_bytes: 0, waiting_bytes: 0, answer_bytes: 0, context_bytes: 0, requests_in_flight: 0});
      const owner = {facts: {name: 'ps0'}, answers: true, lists: {
        trainers: Object.entries(arguments[0]).map(([id, rate]) => trainer(id, rate))}};
      const rows = new module.Trainers().rows([owner], {owners: new Map(), slow: arguments[1]});
      return Object.fromEntries(rows.map((row) => [row.id, row.slow]));
    })"""
    slow = {"bbbbbbbb": "rounds wait for it"}
    assert await browser.ask(code, {"aaaaaaaa": 10, "bbbbbbbb": 9}, slow) == {"aaaaaaaa": "", **slow}


# For everybody


async def test_it_can_be_used_with_the_keyboard(browser: Browser, server: Server) -> None:
    trainers(server.engine, 3)
    for _ in range(3):
        server._sampler.sample()
    await opened(browser, server)
    await browser.until("document.querySelectorAll('#trainers tbody tr').length === 3")
    await browser.ask("document.querySelector('#trainers thead button').focus()")
    for order, first in (("ascending", "train_0000.py"), ("descending", "train_0002.py")):
        await browser.key("Enter")
        assert await browser.ask("document.querySelector('#trainers [aria-sort]').ariaSort") == order
        assert (await browser.text("#trainers tbody th")).startswith(first)
    await browser.ask("document.querySelector('#chart-memory .plot').focus()")
    await browser.key("ArrowLeft")
    await browser.key("ArrowLeft")
    read = await browser.ask("document.getElementById('announcer').textContent")
    assert read[2] == ":" and "ps0" in read
    await browser.key("Escape")
    assert ", now:" in await browser.ask("document.querySelector('#chart-memory .plot').ariaLabel")
    assert await browser.ask("document.querySelector('a, button, input, select, [tabindex]').className") == "skip"


NAMED = {"button", "combobox", "radio", "searchbox", "link", "image", "table", "meter", "region"}


async def test_all_that_can_be_used_has_a_name_and_headings_are_in_order(browser: Browser, server: Server) -> None:
    trainers(server.engine, 60)
    await opened(browser, server)
    await browser.until("!document.querySelector('#trainers .more-rows').hidden")
    tree = await browser.command("Accessibility.getFullAXTree")
    nameless = [
        node["role"]["value"]
        for node in tree["nodes"]
        if not node.get("ignored") and node["role"]["value"] in NAMED and not node.get("name", {}).get("value")
    ]
    assert nameless == []
    headings = "[...document.querySelectorAll('h1, h2, h3')].filter((each) => each.checkVisibility())"
    levels = await browser.ask(f"{headings}.map((each) => Number(each.tagName[1]))")
    assert levels[0] == 1 and all(after - before <= 1 for before, after in pairwise(levels))
    ids = await browser.ask("[...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert len(ids) == len(set(ids))
    assert await browser.ask("document.documentElement.lang") == "en"


CONTRAST = """(() => {
  const parsed = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (rgb) => [0.2126, 0.7152, 0.0722].reduce((sum, part, i) => sum + part * linear(rgb[i] / 255), 0);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = parsed(getComputedStyle(element).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll('body *')) {
    const text = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!text || !element.checkVisibility()) continue;
    const [a, b] = [light(parsed(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${element.tagName} ${element.className} ${element.textContent}: ${ratio}`);
  }
  return [...new Set(found)];
})()"""


BADGE = """(state) => {
  const badge = Object.assign(document.createElement('span'), {className: 'badge', textContent: state});
  badge.dataset.state = state;
  document.querySelector('main').append(badge);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_has_enough_contrast(browser: Browser, server: Server, scheme: str) -> None:
    trainers(server.engine, 60)
    for kind in ("joined", "lost", "slow", "checkpoint", "left"):
        server.engine.events.note(kind, "what happened", "error" if kind == "lost" else "info")
    await browser.prefer(scheme)
    await opened(browser, server)
    await browser.until("document.querySelectorAll('#events tbody tr').length > 4")
    for state in ("serving", "draining", "lost", "slow", "away", "left"):
        await browser.ask(f"({BADGE})(...arguments)", state)
    for kind in ("error", "warning", "note"):
        await browser.ask("Object.assign(document.getElementById('banner'), {hidden: false, textContent: 'text'})")
        await browser.ask("document.getElementById('banner').dataset.kind = arguments[0]", kind)
        assert await browser.ask(CONTRAST) == []
    background = await browser.ask("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(15, 18, 23)") is (scheme == "dark")


async def test_the_scheme_can_be_chosen_and_is_remembered(browser: Browser, server: Server) -> None:
    await opened(browser, server)
    await browser.set("#theme", "dark", "change")
    background = "getComputedStyle(document.body).backgroundColor"
    assert await browser.ask(background) == "rgb(15, 18, 23)"
    await opened(browser, server)
    assert await browser.ask(background) == "rgb(15, 18, 23)"


async def test_a_narrow_screen_does_not_scroll_sideways(browser: Browser, server: Server) -> None:
    trainers(server.engine, 3)
    size: dict[str, Any] = {"height": 800, "deviceScaleFactor": 1, "mobile": False}
    try:
        for width in (1400, 700, 360):
            await browser.command("Emulation.setDeviceMetricsOverride", width=width, **size)
            await opened(browser, server)
            await browser.until("document.querySelectorAll('#trainers tbody tr').length === 3")
            assert await browser.ask("document.documentElement.scrollWidth") <= width
    finally:
        await browser.command("Emulation.clearDeviceMetricsOverride")


async def test_all_columns_of_optimizers_fit_on_a_laptop(browser: Browser, server: Server) -> None:
    async with tc.connect(server.address) as ps:
        net = await ps.module("torch.nn.Linear", 2, 1, name="net")
        policy = tc.policies.BoundedStaleness(bound=16)
        await ps.optimizer(
            "torch.optim.Adam", net.parameters(), lr=0.0001234, name="optimizer-of-the-net", policy=policy
        )
        size: dict[str, Any] = {"height": 800, "deviceScaleFactor": 1, "mobile": False}
        try:
            await browser.command("Emulation.setDeviceMetricsOverride", width=1300, **size)
            await opened(browser, server)
            await browser.until("document.querySelectorAll('#optimizers tbody tr').length === 1")
            for name in ("owners", "trainers", "optimizers", "operations", "tables", "memory"):
                hidden = "((box) => box.scrollWidth - box.clientWidth)(document.querySelector(arguments[0]))"
                assert await browser.ask(hidden, f"#{name} .scroll") == 0, name
        finally:
            await browser.command("Emulation.clearDeviceMetricsOverride")
