"""Random histories of changes, exported into a folder and read there, give the rows that there are."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ps_reader
from ps_reader import layout
from ps_reader.layout import Manifest
from trainer_client.serving import exported_table
from trainer_client.serving.export_folder import Folder
from trainer_client.serving.exported_table import ExportedTable
from trainer_client.tables.changes import Change

DIM = 2
IDS = st.lists(st.integers(-3, 12), max_size=5, unique=True)
BATCHES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["piece", "whole", "whole"]), IDS, IDS),
        st.tuples(st.just("reset"), IDS, st.just([])),
        st.just(("again", [], [])),
    ),
    max_size=12,
)


class World:
    """An export of one table, what it should be at each version, and a reader."""

    def __init__(self, folder: Path, dtype: torch.dtype, keep: int = 100) -> None:
        self.path, self.dtype, self.keep = folder, dtype, keep
        self.rows: dict[int, torch.Tensor] = {}
        self.at: dict[int, dict[int, torch.Tensor]] = {}
        self.version = self.count = 0
        self.reader: ps_reader.Reader | None = None
        self.begin()

    def begin(self) -> None:
        """A program begins to export, or does so after one that was killed."""
        self.folder = Folder(self.path, self.keep)
        newest = self.folder.open() or Manifest(0, "", 0.0, 0.0)
        self.version = newest.version
        self.table = ExportedTable(self.folder, "items", DIM, self.dtype, "", newest.tables.get("items"))
        self.rows = dict(self.at.get(self.version, {}))
        if self.table.version is None:
            self.do("reset", [], [])

    def do(self, kind: str, ids: list[int], removed: list[int]) -> None:
        self.count += 1
        removed = [each for each in removed if each not in ids]
        values = torch.full((len(ids), DIM), float(self.count)) + torch.arange(len(ids))[:, None]
        values = values.to(self.dtype)
        version = None if kind in ("piece", "reset") else {"ps0": (1, self.count)}
        if kind == "reset":
            self.rows.clear()
        for each in removed:
            self.rows.pop(each, None)
        self.rows |= zip(ids, values, strict=True)
        change = Change(version, torch.tensor(ids, dtype=torch.int64), values, torch.tensor(removed, dtype=torch.int64))
        change = Change(version, change.ids, values, change.removed, kind == "reset")
        if self.table.take(change):
            self.version += 1
            assert self.table.files is not None
            self.folder.publish(self.version, 1.0 + self.version, {"items": self.table.files}, {})
            self.at[self.version] = dict(self.rows)
        assert (version is not None) == (kind not in ("piece", "reset"))

    def check(self, version: ps_reader.Version) -> None:
        """A version has the rows that there were."""
        items, expected = version.tables["items"], self.at[version.number]
        assert len(items) == items.rows == len(expected)
        assert items.ids().tolist() == sorted(expected)
        ids = np.array([[*expected, 99], [*expected, -99]])
        values, found = items.look_up(ids, default=-1.0)
        assert found.tolist() == [[True] * len(expected) + [False]] * 2
        rows = np.stack([*(each.float().numpy() for each in expected.values()), np.full(DIM, -1.0)])
        assert (values == rows).all() and values.dtype == (np.float16 if self.dtype is torch.float16 else np.float32)
        for id, row in expected.items():
            assert id in items and (items[id] == row.float().numpy()).all()
        assert 99 not in items
        with pytest.raises(KeyError):
            items[99]
        blocks = list(items.blocks(3))
        assert [each for ids, _ in blocks for each in ids.tolist()] == sorted(expected)

    def read(self) -> None:
        """Looks with a reader that goes on, and with a new one."""
        if not self.version:
            return
        if self.reader is None:
            self.reader = ps_reader.open(self.path, every=3600)
        self.check(self.reader.refresh())
        with ps_reader.open(self.path, every=3600) as reader:
            self.check(reader.current)

    def close(self) -> None:
        self.folder.close()
        if self.reader is not None:
            self.reader.close()


@contextlib.contextmanager
def worlds(dtype: torch.dtype = torch.float32, **more: Any) -> Iterator[World]:
    with TemporaryDirectory() as folder:
        world = World(Path(folder), dtype, **more)
        yield world
        world.close()


@settings(max_examples=60)
@example([("whole", [1, 2], []), ("whole", [2], [1]), ("whole", [1], []), ("again", [], [])], torch.float32, 1, 2)
@example([("piece", [1], []), ("piece", [], [1]), ("whole", [], []), ("whole", [1], [])], torch.float32, 1 << 20, 2)
@given(
    BATCHES,
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    st.sampled_from([1, 100, 1 << 20]),
    st.sampled_from([2, 1 << 20]),
)
def test_each_version_has_the_rows_of_its_time(
    batches: list[Any], dtype: torch.dtype, part_bytes: int, least: int
) -> None:
    with pytest.MonkeyPatch.context() as patched, worlds(dtype) as world:
        patched.setattr(exported_table, "PART_BYTES", part_bytes)
        patched.setattr(exported_table, "LEAST_CHANGED", least)
        patched.setattr(exported_table, "MOST_PARTS", 2)
        for kind, ids, removed in batches:
            if kind == "again":
                world.folder.close()
                world.begin()
            else:
                world.do(kind, ids, removed)
                world.read()
        for version in sorted(world.at):
            assert world.reader is not None
            world.check(world.reader.rollback(version))


def test_old_versions_and_their_files_go_and_stay_readable_for_who_has_them() -> None:
    with worlds(keep=2) as world:
        world.do("whole", [1, 2], [])
        with ps_reader.open(world.path, every=3600) as reader:
            first = reader.current
            for number in range(5):
                world.do("whole", [number], [])
            world.check(first)
            assert reader.current is first and reader.versions() == [5, 6]
            world.check(reader.refresh())
            with pytest.raises(ps_reader.ExportError, match="has no version 1; it has 5, 6"):
                reader.rollback(1)
            world.check(reader.rollback(5))
            world.do("whole", [9], [])
            assert reader.refresh().number == 5, "it was rolled back"
            assert reader.follow().number == 7
        used = set[str]()
        for version in reader.versions():
            used |= layout.read_manifest(world.path, version).files()
        there = {each.name for each in world.path.iterdir()}
        assert there == used | {"version-6.json", "version-7.json", "latest.json", ".lock", ".unfinished"}


def test_the_number_of_a_version_that_a_killed_program_has_not_told_of_is_not_given_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with worlds() as world:
        world.do("whole", [1], [])
        with monkeypatch.context() as patched:
            patched.setattr(Folder, "tell", lambda *_: None)
            world.do("whole", [2], [])
        with ps_reader.open(world.path, every=3600) as reader:
            assert reader.current.number == 1
            world.check(reader.rollback(2))
            world.folder.close()
            world.begin()
            world.check(reader.follow())
            world.do("whole", [3], [1])
            assert world.version == 3
            world.check(reader.follow())
            world.check(reader.rollback(2))


def test_a_folder_put_back_to_an_earlier_copy_gives_no_rows_of_later_ones(tmp_path: Path) -> None:
    with worlds() as world:
        world.do("whole", [1], [])
        world.folder.close()
        shutil.copytree(world.path, tmp_path / "copy")
        world.begin()
        world.do("whole", [2], [])
        with ps_reader.open(world.path, every=3600) as reader:
            world.check(reader.current)
            world.folder.close()
            shutil.rmtree(world.path)
            shutil.copytree(tmp_path / "copy", world.path)
            world.begin()
            world.do("whole", [3], [])
            assert world.version == reader.current.number == 2
            world.check(reader.refresh())


def test_what_a_killed_program_was_writing_is_removed() -> None:
    with worlds() as world:
        world.do("whole", [1], [])
        world.folder.close()
        (world.path / ".unfinished" / ".tmpdI699R").write_bytes(b"as the library of safetensors calls it")
        world.begin()
        assert not list((world.path / ".unfinished").iterdir())
        world.do("whole", [2], [])
        world.read()


def test_a_look_that_took_longer_takes_no_place_of_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with worlds() as world:
        world.do("whole", [1], [])
        with ps_reader.open(world.path, every=3600) as reader:
            latest = layout.latest

            def slow(path: Path) -> layout.Latest:
                told = latest(path)
                monkeypatch.setattr(layout, "latest", latest)
                world.do("whole", [2], [])
                assert reader.refresh().number == 2
                return told

            monkeypatch.setattr(layout, "latest", slow)
            assert reader.refresh().number == 2


def test_a_reader_takes_new_versions_by_itself() -> None:
    with worlds() as world:
        world.do("whole", [1], [])
        with ps_reader.open(world.path, every=0.01) as reader:
            world.do("whole", [2], [])
            world.check(reader.wait_for(2, timeout=60))
            with pytest.raises(TimeoutError, match="version 3 has not come"):
                reader.wait_for(3, timeout=0.01)


def test_a_row_is_read_without_a_copy() -> None:
    with worlds() as world:
        world.do("whole", [1, 2], [])
        with ps_reader.open(world.path) as reader:
            row = reader.current.tables["items"][2]
            assert not row.flags.owndata and not row.flags.writeable
            assert np.shares_memory(row, reader.current.tables["items"][2])


@pytest.mark.parametrize("ids", [[1.5], np.ones(2), "one"], ids=repr)
def test_ids_are_whole_numbers(ids: Any) -> None:
    with worlds() as world:
        world.do("whole", [1, 2], [])
        with ps_reader.open(world.path) as reader, pytest.raises((TypeError, ValueError)):
            reader.current.tables["items"].look_up(ids)


def test_a_folder_that_was_emptied_and_written_anew_is_another_export() -> None:
    with worlds() as world:
        world.do("whole", [1, 2], [])
        world.do("whole", [2], [])
        with ps_reader.open(world.path, every=3600) as reader:
            held = reader.current
            before = dict(world.at[2])
            world.folder.close()
            shutil.rmtree(world.path)
            world.path.mkdir()
            with pytest.raises(ps_reader.ExportError, match="has no export yet"):
                reader.refresh()
            world.at.clear()
            world.begin()
            for number in (1, 2):  # with the numbers of those before
                world.do("whole", [number, 2], [])
                world.check(reader.refresh())
                assert reader.current.export != held.export
            world.at[2] = before
            world.check(held)


def test_ids_beyond_those_of_tables_are_refused() -> None:
    with worlds() as world:
        world.do("whole", [-3, 1], [])
        with ps_reader.open(world.path) as reader:
            items = reader.current.tables["items"]
            for ids in ([2**64 - 3], np.array([1, 2**63], np.uint64)):
                with pytest.raises(OverflowError, match="ids are at most 9223372036854775807, not"):
                    items.look_up(ids)
            assert items.look_up(np.array([1], np.uint64))[1].all() and np.uint64(1) in items
            assert 2**64 - 3 not in items and 2**70 not in items
            with pytest.raises(TypeError):
                items[1.0]  # type: ignore[index]


def damages() -> dict[str, Callable[[Path], object]]:
    def cut(path: Path) -> None:
        (first, *_) = sorted(path.glob("*.safetensors"))
        first.write_bytes(first.read_bytes()[:20])

    def manifest(text: str) -> Callable[[Path], object]:
        return lambda path: (path / "version-1.json").write_text(text)

    return {
        "has no export yet": lambda path: (path / "latest.json").unlink(),
        r"latest\.json cannot be read": lambda path: (path / "latest.json").write_text("[]"),
        "has no version 1; it has none": lambda path: (path / "version-1.json").unlink(),
        "no manifest of an export": manifest("{}"),
        "another release": manifest('{"layout": 99}'),
        "is damaged": cut,
        "lacks its file": lambda path: [each.unlink() for each in path.glob("*.safetensors")],
    }


@pytest.mark.parametrize("message", damages())
def test_what_cannot_be_read_is_told(message: str) -> None:
    with worlds() as world:
        world.do("whole", [1, 2], [])
        damages()[message](world.path)
        with pytest.raises(ps_reader.ExportError, match=message):
            ps_reader.open(world.path)


def test_a_reader_goes_on_with_what_it_has_where_the_newest_version_cannot_be_read() -> None:
    with worlds() as world:
        world.do("whole", [1, 2], [])
        with ps_reader.open(world.path, every=3600) as reader:
            world.do("whole", [3], [])
            (world.path / "version-2.json").write_text("{}")
            with pytest.raises(ps_reader.ExportError):
                reader.refresh()
            world.check(reader.current)
            assert reader.current.number == 1


def test_one_program_writes_into_a_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    with pytest.raises(Exception, match=r"has mine\.txt, which is of no export"):
        Folder(tmp_path, 1).open()
    first = Folder(tmp_path / "own", 1)
    first.open()
    with pytest.raises(Exception, match="another program writes"):
        Folder(tmp_path / "own", 1).open()
    first.close()
    Folder(tmp_path / "own", 1).open()
