"""A Chromium that a test drives, with the questions that tests ask it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")

HOW = "install Debian's packages chromium and chromium-driver"


def start() -> Any:
    """A new browser, or the test is skipped with what is missing."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip(f"{'Chromium' if CHROMIUM is None else 'chromedriver'} is not installed: {HOW}")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: it is in the extra `test`")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        *("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--window-size=1400,1000"),
        *("--no-proxy-server", "--disable-background-networking", "--disable-extensions"),
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER, log_output=os.devnull))


class Browser:
    """One page in a browser. Its methods wait in threads, so that owners may run on the event loop of the test."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    async def open(self, url: str) -> None:
        """Loads a page."""
        await asyncio.to_thread(self.driver.get, url)

    async def ask(self, code: str, *arguments: Any) -> Any:
        """The value of an expression of JavaScript, in which `arguments` are those given."""
        return await asyncio.to_thread(self.driver.execute_script, f"return ({code});", *arguments)

    async def count(self, selector: str) -> int:
        """The number of elements that a selector finds."""
        return int(await self.ask("document.querySelectorAll(arguments[0]).length", selector))

    async def text(self, selector: str) -> str:
        """The text of the first element that a selector finds."""
        return str(await self.ask("document.querySelector(arguments[0]).innerText", selector))

    async def click(self, selector: str) -> None:
        """Clicks on the first element that a selector finds."""
        await self.ask("document.querySelector(arguments[0]).click()", selector)

    async def set(self, selector: str, value: str, event: str) -> None:
        """Sets the value of a field, as a person does."""
        field = "const field = document.querySelector(arguments[0]); field.value = arguments[1];"
        await self.ask(
            f"(function () {{ {field} field.dispatchEvent(new Event(arguments[2])) }})(...arguments)",
            selector,
            value,
            event,
        )

    async def until(self, code: str, *arguments: Any, holds: Callable[[Any], bool] = bool, seconds: float = 30) -> Any:
        """Waits until an expression has a value, and returns it."""
        found = None
        try:
            async with asyncio.timeout(seconds):
                while not holds(found := await self.ask(code, *arguments)):  # noqa: ASYNC110 - only the browser knows
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{code} is still {found!r}") from None
        return found

    async def command(self, name: str, **arguments: Any) -> Any:
        """Runs a command of the DevTools protocol."""
        return await asyncio.to_thread(self.driver.execute_cdp_cmd, name, arguments)

    async def key(self, name: str) -> None:
        """Presses a key."""
        code = {"Enter": 13, "Escape": 27, "Tab": 9, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}[name]
        text = {"text": "\r"} if name == "Enter" else {}
        await self.command("Input.dispatchKeyEvent", type="keyDown", key=name, windowsVirtualKeyCode=code, **text)
        await self.command("Input.dispatchKeyEvent", type="keyUp", key=name, windowsVirtualKeyCode=code)

    async def prefer(self, scheme: str) -> None:
        """Has the system prefer `dark` or `light`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.command("Emulation.setEmulatedMedia", features=features)

    def complaints(self) -> list[str]:
        """What stands in its console since the last time: errors, and all that a policy has refused."""
        return [each["message"] for each in self.driver.get_log("browser") if each["level"] in ("SEVERE", "WARNING")]
