"""Tests the charts of what trainers report, in a real browser: two optimizers, an hour of values, wide and narrow."""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import math
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ps_service.engine import Engine
from ps_service.monitoring.page_formats import NONE
from ps_service.server import Server
from tests.ps_service.monitoring.chromium.browser import Browser
from tests.ps_service.monitoring.curves import of, train

pytestmark = pytest.mark.browser

HERE = "127.0.0.1:0"
READY = "!document.getElementById('charts').hidden"
SHOWN = "!document.getElementById('values-charts').hidden"
TITLES = "[...document.querySelectorAll('#value-charts h3')].map((each) => each.textContent)"
LEGENDS = """[...document.querySelectorAll('#value-charts figure')].map((figure) =>
    [...figure.querySelectorAll('.legend li')].map((each) =>
      [...each.children].slice(1).map((part) => part.textContent)))"""
ROWS = "[...document.querySelectorAll('#values tbody tr')].map((row) => [...row.cells].map((cell) => cell.innerText))"
EVIL = "<img src=x onerror='window.evil=1'>"


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server(Engine("ps0"), http=HERE) as server:
        yield server


async def opened(browser: Browser, server: Server) -> None:
    await browser.open(f"http://{server.http_address}/")
    await browser.until(READY)


async def picture(browser: Browser, name: str, width: int, height: int = 1400) -> None:
    """Resizes the window, and writes what it shows where PAGE_PICTURES says."""
    await browser.command(
        "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
    )
    await browser.until("innerWidth === arguments[0]", width)
    await browser.until("[...document.querySelectorAll('.u-wrap')].every((each) => each.clientWidth <= innerWidth)")
    if folder := os.environ.get("PAGE_PICTURES"):
        await browser.ask("scrollTo(0, 0)")
        found = await browser.command("Page.captureScreenshot", format="png")
        await asyncio.to_thread(Path(folder, f"{name}.png").write_bytes, base64.b64decode(found["data"]))


async def test_an_hour_of_two_optimizers_is_two_charts(browser: Browser, server: Server) -> None:
    train(server.engine, "encoder.optimizer", 5.0)
    train(server.engine, "head.optimizer", 2.5)
    await opened(browser, server)
    await browser.until(SHOWN)
    assert await browser.ask(TITLES) == ["loss", "accuracy"]
    loss, accuracy = await browser.ask(LEGENDS)
    assert [label for label, _, _ in loss] == ["encoder.optimizer", "head.optimizer"]
    # 36,000 values are 281 points of 128, and one of 32.
    assert all(detail.endswith(", versions 35,969 to 36,000") for _, _, detail in loss)
    assert [detail.rpartition(", ")[2] for _, _, detail in accuracy] == ["version 36,000"] * 2
    # Two optimizers are told apart by colour, and by the dashes of their lines.
    paths = "[...document.querySelectorAll('#value-charts figure:first-child .legend path')]"
    strokes = await browser.ask(
        f"{paths}.map((each) => [getComputedStyle(each).stroke, each.getAttribute('stroke-dasharray')])"
    )
    assert strokes[0][0] != strokes[1][0] and strokes[0][1] != strokes[1][1]
    for scheme in ("light", "dark"):
        await browser.prefer(scheme)
        for width in (1280, 400):
            await picture(browser, f"hour-{scheme}-{width}", width)
            assert await browser.ask("document.documentElement.scrollWidth <= innerWidth")
    assert browser.complaints() == []


async def test_the_cursor_and_the_keyboard_tell_a_value_and_its_versions(browser: Browser, server: Server) -> None:
    one, other = of(server.engine.curves, "sgd"), of(server.engine.curves, "adam")
    for version in (1, 2, 3, 4, 5):
        one.add(version, {"loss": 1 / version})
    other.add(2, {"loss": 0.123456})
    other.add(3, {"loss": math.nan})
    await opened(browser, server)
    await browser.until(SHOWN)
    assert await browser.ask(LEGENDS) == [
        [["sgd", "0.2", "version 5"], ["adam", NONE, "version 3, 1 NaN or infinite"]],
    ]
    plot = "#value-charts .plot"
    label = "document.querySelector('#value-charts .plot').getAttribute('aria-label')"
    assert await browser.ask(label) == f"loss, now: sgd 0.2, version 5; adam {NONE}, version 3, 1 NaN or infinite"
    await browser.ask("document.querySelector(arguments[0]).focus()", plot)
    await browser.key("Home")
    await browser.key("ArrowRight")
    told = "sgd 0.5, version 2; adam 0.123456, version 2"
    assert await browser.text("#announcer") == f"version 2: {told}"
    assert await browser.ask(label) == f"loss, version 2: {told}"
    await browser.key("Escape")
    assert (await browser.ask(LEGENDS))[0][0] == ["sgd", "0.2", "version 5"]
    # The pointer, over the left edge of the chart.
    over = "document.querySelector('#value-charts .u-over')"
    await browser.ask(f"{over}.scrollIntoView()")
    box = await browser.ask(f"(({{left, top}}) => [left, top])({over}.getBoundingClientRect())")
    await browser.command("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + 2, y=box[1] + 20)
    await browser.until(f"({LEGENDS})[0][0][2] === 'version 1'")
    assert (await browser.ask(LEGENDS))[0] == [["sgd", "1", "version 1"], ["adam", NONE, "not begun"]]
    await picture(browser, "cursor", 1280)
    assert browser.complaints() == []


async def test_values_are_chosen_by_name_and_stand_in_a_table(browser: Browser, server: Server) -> None:
    curves = of(server.engine.curves, EVIL)
    for version in range(1, 4):
        curves.add(version, {EVIL: float(version), **{f"value {index}": -0.5 * index for index in range(20)}})
    of(server.engine.curves, "adam").add(9, {EVIL: 1e-9})
    await opened(browser, server)
    await browser.until(SHOWN)
    assert await browser.count("#value-charts figure") == 12
    rest = await browser.text("#values-rest")
    assert rest.startswith("4 more values: choose one by its name. 15 reported values have no curve: ")
    await picture(browser, "many-1280", 1280, 1900)
    await browser.set("#value", EVIL, "change")
    assert await browser.ask(TITLES) == [EVIL]
    await picture(browser, "one-1280", 1280)
    await browser.set("#value", "", "change")
    # A scale that some values do not fit on stays as it is.
    await browser.click("#value-log")
    notes = "[...document.querySelectorAll('#value-charts figcaption span')].map((each) => each.innerText)"
    assert (await browser.ask(notes))[:2] == ["mean and range, by version", "not all positive: linear scale"]
    await picture(browser, "log-1280", 1280)
    await browser.set("#value-optimizer", "adam", "change")
    assert await browser.ask(TITLES) == [EVIL]
    rows = await browser.ask(ROWS)
    assert sorted(rows)[:2] == [
        [EVIL, EVIL, "ps0", "3", "1", "3", "3", "0", "3"],
        [EVIL, "adam", "ps0", "1e-9", "1e-9", "1e-9", "1", "0", "9"],
    ]
    assert await browser.ask("window.evil") is None
    # What is added is drawn while the page is open.
    of(server.engine.curves, "late").add(1, {"reward": 5.0})
    await browser.set("#value-optimizer", "", "change")
    await browser.until("[...document.getElementById('value').options].some((each) => each.value === 'reward')")
    assert browser.complaints() == []


async def test_the_export_is_a_file_with_every_point(browser: Browser, server: Server) -> None:
    train(server.engine, "net.optimizer", 4.0, steps=1000)
    await opened(browser, server)
    await browser.until(SHOWN)
    link = "document.querySelector('#values-charts a[download]')"
    assert await browser.ask(f"{link}.innerText") == "Export"
    text = await browser.ask(f"fetch({link}.href).then((answer) => answer.text())")
    lines = list(csv.DictReader(io.StringIO(text)))
    assert sum(int(each["count"]) for each in lines if each["value"] == "loss") == 1000
    assert browser.complaints() == []


async def test_without_values_the_page_says_how_to_report_some(browser: Browser, server: Server) -> None:
    await opened(browser, server)
    assert await browser.ask("document.getElementById('values-charts').hidden")
    assert 'opt.step(ctx, values={"loss": loss})' in await browser.text("#values .empty")
