"""Tests what an owner keeps of its place in a group while it runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ps_service.durability.place import Place
from trainer_client.rpc.leased_entry import LeasedEntry


async def test_a_place_that_cannot_be_kept_is_told_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data"
    membership = SimpleNamespace(has_data_dir=lambda: True)
    entry: Any = SimpleNamespace(
        _engine=SimpleNamespace(data_dir=folder, membership=membership),
        _merged=SimpleNamespace(addresses={"a": "moved:1"}),
        _claimed=SimpleNamespace(entry=SimpleNamespace(epoch=2)),
        _place=Place(0, "a"),
        _unkept=Place(),
    )
    for _ in range(3):
        await LeasedEntry._keep_place(entry)
    assert caplog.text.count("where the keepers are cannot be kept in") == 1 and entry._place == Place(0, "a")
    folder.mkdir()
    await LeasedEntry._keep_place(entry)
    assert Place.read(folder) == entry._place == Place(0, "a", {"a": "moved:1"}, 2)
