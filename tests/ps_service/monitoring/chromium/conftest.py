"""One browser for all tests of the page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.ps_service.monitoring.chromium import browser as chromium
from tests.ps_service.monitoring.chromium.browser import Browser


class _Quits:
    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def close(self) -> None:
        self.driver.quit()


@pytest.fixture(scope="session")
def driver() -> Iterator[Any]:
    """A browser."""
    with closing(_Quits(chromium.start())) as quits:
        yield quits.driver


@pytest.fixture
def browser(driver: Any) -> Iterator[Browser]:
    """An empty page in it, with the light scheme and nothing in its storage."""
    found = Browser(driver)
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "light"}]}
    )
    yield found
    driver.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": "*", "storageTypes": "local_storage"})
    driver.get("about:blank")
    found.complaints()
