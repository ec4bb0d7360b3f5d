"""Tests of the parts of the crash test, which have to notice what it is for; `make crash-test` runs it."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.crash.events import Violation
from tests.crash.exports import check_order
from tests.crash.points import POINTS
from tests.crash.shadow import Shadow
from tests.crash.workloads.ordered import Ordered


def test_there_are_many_points() -> None:
    assert len(POINTS) >= 40
    for part in ("write.before", "write.torn", "sync.after", "rename.before", "answer.step.after", "replay.record"):
        assert any(part in name for name in POINTS)


class Listed:
    """A list, as the reference of what actions have appended."""

    def __init__(self) -> None:
        self.items: list[int] = []

    def apply(self, item: int) -> None:
        self.items.append(item)

    def state(self) -> list[int]:
        return self.items


@pytest.mark.parametrize(
    ("version", "state", "known", "must", "may", "what"),
    [
        (2, [7, 8], {1: 7, 2: 8}, [], [], ""),
        (2, [8, 7], {1: 7, 2: 8}, [], [], "not the bits"),
        (1, [7], {1: 7, 2: 8}, [], [], r"acknowledged versions \[2\] are lost"),
        (1, [7], {1: 7}, [8], [], "only 0 can be there"),
        (2, [7, 8], {1: 7}, [8], [], ""),
        (3, [9, 7, 8], {2: 7}, [8], [9], ""),
        (1, [7], {1: 7}, [], [9], ""),
        (3, [7, 8, 8], {1: 7}, [], [8], "applied twice"),
    ],
)
def test_versions_that_are_lost_or_applied_twice_are_noticed(
    version: int, state: list[int], known: dict[int, int], must: list[int], may: list[int], what: str
) -> None:
    ordered = Ordered("the list", Listed())
    if what:
        with pytest.raises(Violation, match=what):
            ordered.follow(version, state, known, must, may)
    else:
        ordered.follow(version, state, known, must, may)
        assert ordered.version == version


def test_versions_that_may_be_lost_are_only_the_last(tmp_path: Path) -> None:
    ordered = Ordered("the list", Listed())
    ordered.follow(2, [7, 8], {1: 7, 2: 8, 3: 9}, [], [], earliest=3)
    with pytest.raises(Violation, match="lost"):
        Ordered("the list", Listed()).follow(1, [7], {1: 7, 2: 8, 3: 9}, [], [], earliest=3)


@pytest.mark.parametrize(
    ("told", "what"),
    [
        ({3: "a", 4: "a", 6: "c", 7: "d"}, ""),
        ({3: "b", 4: "a"}, "version 4 of the export goes back to rows"),
        ({3: "b", 4: "e"}, "version 4 of the export has rows that were never there"),
    ],
)
def test_versions_of_an_export_that_go_back_or_are_made_up_are_noticed(told: dict[int, str], what: str) -> None:
    passed = ["a", "b", "c", "d"]
    if what:
        with pytest.raises(Violation, match=what):
            check_order("items", passed, told)
    else:
        check_order("items", passed, told)


@pytest.fixture
def shadow(tmp_path: Path) -> Shadow:
    (tmp_path / "data").mkdir()
    return Shadow(tmp_path / "data", tmp_path / "shadow")


def seen(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_was_synced_stays_and_the_rest_is_there_in_any_part(shadow: Shadow) -> None:
    path, states = shadow.folder / "file", set()
    for seed in range(40):
        path.write_bytes(bytes(1024))
        shadow.note(made="file")
        with path.open("rb") as file:
            shadow.synced(file.fileno())
        shadow.note(synced="")
        path.write_bytes(b"1" * 1024)
        shadow.lose(random.Random(seed))
        states.add(path.read_bytes())
    old, new = bytes(512), b"1" * 512
    assert states == {old + old, old + new, new + old, new + new}


def test_names_are_lost_in_any_order_until_their_folder_is_synced(shadow: Shadow) -> None:
    states = set()
    for seed in range(60):
        for path in shadow.folder.iterdir():
            path.unlink()
        (shadow.folder / "first").write_bytes(b"1")
        (shadow.folder / "second").write_bytes(b"2")
        shadow.all_synced()
        os.rename(shadow.folder / "first", shadow.folder / "third")
        shadow.note(renamed="first", to="third")
        kept = shadow.keep(shadow.folder / "second")
        os.unlink(shadow.folder / "second")
        shadow.note(removed="second", kept=kept)
        if seed % 2:
            shadow.note(synced="")
        shadow.lose(random.Random(seed))
        states.add((seed % 2, *sorted(seen(shadow.folder).items())))
    assert {each[1:] for each in states if each[0]} == {((("third", b"1")),)}
    assert len([each for each in states if not each[0]]) == 4
