"""Has tests that invoke the command line build it once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
from typer import testing
from typer.main import get_command


@pytest.fixture(scope="session", autouse=True)
def built_once() -> Iterator[None]:
    """Keeps the commands of an application for all invocations: to build those of `ps-service` takes longer than most
    of them do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing, "_get_command", cache(get_command))
        yield
