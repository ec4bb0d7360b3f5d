"""Tests that the data directory always holds a complete checkpoint, and that incomplete ones are never read."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ps_service.durability import files
from ps_service.durability.manifest import NAME, DamagedError, Manifest
from ps_service.durability.store import CheckpointError, Store
from tests.forked_child import forked_child


def filled(content: str) -> Callable[[Path], Manifest]:
    """Writes a checkpoint of two files."""

    def fill(folder: Path) -> Manifest:
        (folder / "tensors-00001.safetensors").write_text(content * 100)
        files.write_file(folder / "state.pb", content.encode())
        return Manifest("ps0", ("b", "a"), "2026-01-01T00:00:00+00:00", "0.1.0")

    return fill


def content(store: Store) -> str | None:
    """What the newest whole checkpoint holds."""
    found = store.newest()
    if found is None:
        return None
    folder, manifest = found
    assert manifest == Manifest.read(folder)
    text = (folder / "state.pb").read_text()
    assert (folder / "tensors-00001.safetensors").read_text() == text * 100
    return text


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


def test_the_newest_counts_and_one_before_it_is_kept(store: Store) -> None:
    assert content(store) is None
    for text in "one", "two", "three":
        store.write(filled(text))
        assert content(store) == text
    assert sorted(path.name for path in store.folder.iterdir()) == ["checkpoint-000002", "checkpoint-000003", "lock"]


def test_a_manifest_reads_back_what_was_written(store: Store) -> None:
    store.write(filled("one"))
    found = store.newest()
    assert found is not None
    _, manifest = found
    assert (manifest.owner, manifest.incarnations) == ("ps0", ("b", "a"))
    assert manifest.files.keys() == {"state.pb", "tensors-00001.safetensors"}
    assert manifest.files["state.pb"]["bytes"] == 3


def test_only_its_user_may_look_into_it(store: Store) -> None:
    path, _ = store.write(filled("one"))
    assert [folder.stat().st_mode & 0o077 for folder in (store.folder, path)] == [0, 0]


# What can go wrong while it is written


class Disk:
    """Notes what is asked of the disk, and fails at one of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fail_at: int = -1) -> None:
        self.asked: list[tuple[str, str]] = []
        self._fail_at = fail_at
        self._fsync, self._rename = os.fsync, os.rename
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(os, "rename", self.rename)

    def fsync(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        size = "" if path.is_dir() else f" of {path.stat().st_size}"
        self._ask("sync", f"{path.name}{size}")
        self._fsync(descriptor)

    def rename(self, before: Path, after: Path) -> None:
        self._ask("rename", Path(after).name)
        self._rename(before, after)

    def _ask(self, what: str, of: str) -> None:
        if len(self.asked) == self._fail_at:
            raise OSError(28, "No space left on device")
        self.asked.append((what, of))


def test_every_byte_is_on_the_disk_before_the_checkpoint_has_its_name(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(filled("one"))
    disk = Disk(monkeypatch)
    path, _ = store.write(filled("seven"))
    size = (path / NAME).stat().st_size
    assert size > 100
    assert disk.asked == [
        ("sync", "state.pb of 5"),
        ("sync", "state.pb of 5"),
        ("sync", "tensors-00001.safetensors of 500"),
        ("sync", f"{NAME} of {size}"),
        ("sync", ".checkpoint-000002"),
        ("rename", "checkpoint-000002"),
        ("sync", "data"),
    ]


@pytest.mark.parametrize("at", range(7))
def test_wherever_the_disk_fails_there_is_a_whole_checkpoint(
    store: Store, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    store.write(filled("one"))
    with monkeypatch.context() as patch:
        Disk(patch, fail_at=at)
        with pytest.raises(CheckpointError, match=r"No space left on device; checkpoint-000001 is still valid"):
            store.write(filled("two"))
    assert not list(store.folder.glob(".checkpoint-*")), "the log needs the room"
    # After the last of them everything is there; it is only not known whether it would be after a power failure.
    assert content(store) == ("two" if at == 6 else "one")
    store.write(filled("three"))
    assert content(store) == "three"
    assert not list(store.folder.glob(".checkpoint-*"))


def test_an_incomplete_checkpoint_is_never_read(store: Store) -> None:
    store.write(filled("one"))
    half = store.folder / ".checkpoint-000002"
    half.mkdir()
    filled("two")(half)
    assert content(store) == "one"
    store.write(filled("three"))
    assert not half.exists()


# What can go wrong while it lies there


def test_every_flipped_bit_is_noticed(store: Store) -> None:
    path, _ = store.write(filled("one"))
    draw = random.Random(7)
    for file in sorted(path.iterdir()):
        original = file.read_bytes()
        for _ in range(150):
            damaged = bytearray(original)
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
            file.write_bytes(damaged)
            with pytest.raises(DamagedError, match=file.name):
                Manifest.read(path)
        for shorter in (b"", original[:-1], original + b"\n" + original):
            file.write_bytes(shorter)
            with pytest.raises(DamagedError):
                Manifest.read(path)
        file.unlink()
        with pytest.raises(DamagedError):
            Manifest.read(path)
        file.write_bytes(original)
    assert content(store) == "one"


def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_counts(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    for text in "one", "two":
        path, _ = store.write(filled(text))
    (path / "state.pb").write_text("tow")
    assert content(store) == "one"
    assert [(each.levelname, "state.pb is damaged" in each.message) for each in caplog.records] == [("ERROR", True)]
    assert (store.folder / "damaged-checkpoint-000002").is_dir()
    assert store.write(filled("three"))[0].name == "checkpoint-000003", "a number is not used twice"


def test_an_owner_whose_checkpoints_are_all_damaged_does_not_begin_with_nothing(store: Store) -> None:
    path, _ = store.write(filled("one"))
    (path / NAME).write_text("{}")
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"is damaged.*damaged-checkpoint-000001.*backup"):
            store.newest()


def test_a_checkpoint_of_a_later_release_is_not_misread(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ps_service.durability.manifest.FORMAT", 2)
    path, _ = store.write(filled("one"))
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"by release 0\.1\.0, in format 2; this release reads format 1"):
        store.newest()
    assert path.is_dir()
    assert json.loads((path / NAME).read_text())["format"] == 2


@pytest.mark.parametrize("name", [NAME, "state.pb", "tensors-00001.safetensors"])
@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("a FIFO", os.mkfifo),
        ("a directory", os.mkdir),
        ("a device", lambda path: os.symlink("/dev/zero", path)),
    ],
)
def test_what_is_no_file_is_not_read(
    store: Store, caplog: pytest.LogCaptureFixture, name: str, kind: str, make: Callable[[Path], None]
) -> None:
    for text in "one", "two":
        path, _ = store.write(filled(text))
    (path / name).unlink()
    make(path / name)
    assert content(store) == "one"
    assert [each.message.partition(";")[0] for each in caplog.records] == [f"{path / name} is {kind}, and not a file"]


def test_what_is_no_folder_does_not_stop_the_next_checkpoint(store: Store) -> None:
    os.mkfifo(store.folder / ".checkpoint-000007")
    store.write(filled("one"))
    os.mkfifo(store.folder / "checkpoint-000002")
    assert content(store) == "one"
    assert store.write(filled("two"))[0].name == "checkpoint-000003"
    assert not (store.folder / ".checkpoint-000007").exists()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_lock_that_is_no_file_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "lock")
    with pytest.raises(CheckpointError, match=r"lock is .*, and not a file: remove it"):
        Store(tmp_path)


# What can go wrong while its owner runs


def test_a_directory_that_was_removed_is_made_again(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.write(filled("one"))
    shutil.rmtree(store.folder)
    store.write(filled("two"))
    assert content(store) == "two"
    (told,) = [each.message for each in caplog.records]
    assert told.startswith(f"the data directory {store.folder}, or its lock, was removed while its owner ran")
    assert told.endswith("it is made again, and has 0 checkpoints")
    with pytest.raises(CheckpointError, match="another owner uses the data directory"):
        Store(store.folder)
    store.write(filled("three"))
    assert len(caplog.records) == 1


def test_a_directory_that_another_owner_has_taken_meanwhile_is_left_alone(store: Store) -> None:
    store.write(filled("one"))
    shutil.rmtree(store.folder)
    other = Store(store.folder)
    other.write(filled("other"))
    with pytest.raises(CheckpointError, match="another owner uses the data directory"):
        store.write(filled("two"))
    assert content(other) == "other"
    other.close()


# Who may use it


def test_a_data_directory_has_one_owner_at_a_time(store: Store) -> None:
    with pytest.raises(CheckpointError, match="another owner uses the data directory"):
        Store(store.folder)
    store.close()
    Store(store.folder).close()


def test_a_forked_child_does_not_keep_the_data_directory_of_its_parent(store: Store) -> None:
    """The parent may be killed, which closes its descriptor as here."""
    with forked_child():
        store.close()
        Store(store.folder).close()


def test_a_data_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"the data directory .*file/data cannot be used by user \d+: Not a dir"):
        Store(tmp_path / "file" / "data")
    with pytest.raises(CheckpointError, match=r"the data directory .*file is a file"):
        Store(tmp_path / "file")
