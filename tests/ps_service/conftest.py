"""An owner without a server, for tests of what it holds and does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ps_service.engine import Engine
from tests import hosted_models
from tests.allowed import allowed
from tests.ps_service.clock import Clock


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An owner called ps0 that hosts the classes of `tests.hosted_models`."""
    engine = Engine("ps0", allowed(hosted_models))
    yield engine
    engine.close()


@pytest.fixture
def clock() -> Clock:
    """A clock for what takes one as an argument."""
    return Clock()
