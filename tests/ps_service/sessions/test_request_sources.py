"""Tests that running requests of every source are listed and can be ended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ps_service.sessions.request_sources import RequestSources, Running
from ps_service.sessions.sessions import Sessions, SessionState
from ps_wire.limits import Limits
from ps_wire.v1.operations_pb2 import StatusRequest

ANNA, BERT = b"a" * 16, b"b" * 16


class Way:
    """A way on which requests of some trainers came."""

    def __init__(self, dismissed: list[tuple[Way, SessionState]], *trainers: bytes, fails: bool = False) -> None:
        self._dismissed = dismissed
        self._trainers = trainers
        self._fails = fails

    def running(self) -> Iterator[Running]:
        return (Running(trainer, StatusRequest()) for trainer in self._trainers)

    def dismiss(self, session: SessionState) -> None:
        self._dismissed.append((self, session))
        if self._fails:
            raise OSError("it could not be freed")


def test_an_owner_without_sources_has_no_requests() -> None:
    sources = RequestSources()
    assert list(sources.running()) == []
    sources.dismiss(Sessions(Limits()).open(ANNA))


def test_the_requests_of_all_sources_are_listed() -> None:
    sources = RequestSources()
    sources.add(Way([], ANNA))
    sources.add(Way([], BERT, ANNA))
    assert [each.trainer for each in sources.running()] == [ANNA, BERT, ANNA]


@pytest.mark.parametrize("failing", [(), (0,), (1,), (0, 1)])
def test_a_session_is_dismissed_by_every_source_in_order_whichever_fail(failing: tuple[int, ...]) -> None:
    dismissed: list[tuple[Way, SessionState]] = []
    ways = [Way(dismissed, fails=number in failing) for number in range(2)]
    sources = RequestSources()
    for way in ways:
        sources.add(way)
    session = Sessions(Limits()).open(ANNA)
    if failing:
        with pytest.raises(OSError, match="could not be freed"):
            sources.dismiss(session)
    else:
        sources.dismiss(session)
    assert dismissed == [(way, session) for way in ways]
