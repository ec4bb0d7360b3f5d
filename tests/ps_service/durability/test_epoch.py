"""Tests of epochs: one owner of a data directory at a time, where no lock holds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ps_service.durability import files, store
from ps_service.durability.epoch import Epoch, FencedError, RemovedError
from ps_service.durability.manifest import Manifest
from ps_service.durability.store import CheckpointError, Store, finished
from ps_wire.v1 import checkpoint_pb2 as pb


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_last_one_has_the_directory(tmp_path: Path) -> None:
    first = Epoch(tmp_path)
    first.check()
    second = Epoch(tmp_path)
    second.check()
    assert (first.number, second.number) == (1, 2)
    with pytest.raises(FencedError, match="has epoch 2, and this one 1"):
        first.check()
    assert names(tmp_path) == ["epoch-000002"]
    assert Epoch(tmp_path).number == 3


def test_of_two_that_begin_together_each_has_a_number_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Epoch(tmp_path)
    others: list[Epoch] = []
    look = Epoch._numbers

    def numbers(self: Epoch) -> list[int]:
        found = look(self)
        if not others and not self.number:
            others.append(self)
            others.append(Epoch(tmp_path))  # while this one has seen the same numbers
        return found

    monkeypatch.setattr(Epoch, "_numbers", numbers)
    late = Epoch(tmp_path)
    assert (others[1].number, late.number) == (2, 3)
    with pytest.raises(FencedError):
        others[1].check()
    late.check()


def test_who_removes_the_file_or_the_directory_takes_nothing(tmp_path: Path) -> None:
    epoch = Epoch(tmp_path)
    (tmp_path / "epoch-000001").unlink()
    epoch.check()
    assert names(tmp_path) == ["epoch-000001"]
    shutil.rmtree(tmp_path)
    with pytest.raises(RemovedError, match=rf"^\[Errno \d+\] {tmp_path} was removed or renamed while its owner ran"):
        epoch.check()


@pytest.fixture
def unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system on which `flock` does not hold."""
    monkeypatch.setattr(store.fcntl, "flock", lambda *_: None)


def fill(folder: Path) -> Manifest:
    return finished(folder, pb.Checkpoint(), "ps0")


@pytest.mark.usefixtures("unlocked")
def test_a_fenced_owner_completes_no_checkpoint(tmp_path: Path) -> None:
    first, second = Store(tmp_path), Store(tmp_path)
    first.begin_epoch()
    first.write(fill)

    def fill_and_be_fenced(folder: Path) -> Manifest:
        made = fill(folder)
        second.begin_epoch()
        folder.mkdir(exist_ok=True)
        return made

    with pytest.raises(CheckpointError, match="could not be written"):
        first.write(fill_and_be_fenced)
    with pytest.raises(CheckpointError, match="another owner has taken the data directory"):
        first.write(fill)
    assert [path.name for path in second.kept()] == ["checkpoint-000001"]
    assert second.write(fill)[0].name == "checkpoint-000002"


@pytest.mark.usefixtures("unlocked")
def test_a_fenced_owner_that_fails_leaves_what_the_other_one_writes(tmp_path: Path) -> None:
    first, second = Store(tmp_path), Store(tmp_path)
    first.begin_epoch()

    def fill_and_be_fenced(folder: Path) -> Manifest:
        second.begin_epoch()
        folder.mkdir()
        (folder / "of the other").touch()
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match="No space left on device"):
        first.write(fill_and_be_fenced)
    assert (tmp_path / ".checkpoint-000001" / "of the other").is_file()


def test_what_a_checkpoint_has_left_is_removed_before_an_epoch_needs_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Store(tmp_path)
    leftover = tmp_path / ".checkpoint-000001"
    leftover.mkdir()
    write_file = files.write_file

    def write(path: Path, content: bytes) -> None:
        if leftover.exists():
            raise OSError(28, "No space left on device")
        write_file(path, content)

    monkeypatch.setattr(files, "write_file", write)
    assert first.begin_epoch().number == 1


@pytest.mark.usefixtures("unlocked")
def test_one_that_was_checked_and_not_yet_renamed_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Store(tmp_path), Store(tmp_path)
    first.begin_epoch()
    publish = store.files.publish

    def late(folder: Path, name: Path) -> None:
        second.begin_epoch()  # the first one is frozen between its check and the renaming
        publish(folder, name)

    monkeypatch.setattr(store.files, "publish", late)
    with pytest.raises(CheckpointError):
        first.write(fill)
    assert second.kept() == []
