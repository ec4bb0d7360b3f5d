"""Tests which owners of a group are watched for the page."""

from __future__ import annotations

import pytest

from ps_service.engine import Engine
from ps_service.monitoring import group_watch
from ps_service.monitoring.group_watch import GroupWatch
from ps_wire.v1.operations_pb2 import Member


def members(*names: str) -> list[Member]:
    return [Member(name=name, address=f"{name}:1", id=number) for number, name in enumerate(names)]


async def test_owners_that_have_gone_give_their_places_to_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_watch, "MOST_OWNERS", 4)
    watch = GroupWatch(Engine("ps0"), lambda: "ps0:1")
    watch._note(members("ps0", "ps1", "ps2", "ps3"))
    for name, since in (("ps1", 3.0), ("ps2", 2.0), ("ps3", 1.0)):
        watch.owners[name].state, watch.owners[name].since = "lost", since
    first = watch._tasks["ps2"]
    watch._note(members("ps0", "ps3"))
    assert list(watch.owners) == ["ps0", "ps1", "ps2", "ps3"], "they are shown until places are wanted"
    watch._note(members("ps0", "ps3", "ps4"))
    assert (list(watch.owners), watch.unseen) == (["ps0", "ps1", "ps3", "ps4"], 0)
    assert first.cancelling() and watch._tasks.keys() == watch.owners.keys()
    watch._note(members("ps0", "ps3", "ps4", "ps5", "ps6"))
    assert (list(watch.owners), watch.unseen) == (["ps0", "ps3", "ps4", "ps5"], 1), "one that is listed keeps its place"
    await watch.stop()
