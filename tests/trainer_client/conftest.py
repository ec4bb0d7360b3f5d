"""Fixtures: what a session sends by itself comes when a test says so, and graphs are short."""

from __future__ import annotations

import pytest

from ps_wire.runtime.latency import Latencies, Latency
from trainer_client.graph import short_graphs
from trainer_client.session import requests


@pytest.fixture(autouse=True)
def confirmed_with_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are confirmed with the next request alone.

    A frame of its own comes after a tenth of a second, which may be over before a busy machine makes that request.
    """
    monkeypatch.setattr(requests, "_CONFIRM_SECONDS", 3600.0)


@pytest.fixture
def confirmed_soon(confirmed_with_requests: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are confirmed without a request, too, as soon as the event loop has time."""
    monkeypatch.setattr(requests, "_CONFIRM_SECONDS", 0.0)


@pytest.fixture
def all_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every graph is taken for short."""
    monkeypatch.setattr(Latency, "expected", lambda self, size=0: 0.0)
    monkeypatch.setattr(short_graphs, "_latencies", Latencies())
