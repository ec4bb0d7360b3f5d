"""The data directory of one owner, with its checkpoints and a lock file."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from ps_service.durability import files
from ps_service.durability.epoch import Epoch
from ps_service.durability.manifest import NAME, SIGNATURE, DamagedError, Manifest, described
from ps_wire.regular_files import open_regular
from ps_wire.release import RELEASE
from ps_wire.runtime import forks
from ps_wire.v1 import checkpoint_pb2 as pb

if TYPE_CHECKING:
    from ps_service.durability.keys import Keys

_log = logging.getLogger(__name__)

STATE: Final = "state.pb"
"""The file of a checkpoint with everything except tensors."""

APART_SECONDS: Final = 300.0
"""How far apart the checkpoints of owners that were stopped together may be written."""

_CHECKPOINT: Final = re.compile(r"(?:damaged-)?checkpoint-(\d{6,})")
_DAMAGED: Final = "damaged-"
_LOCK: Final = "lock"
_PRIVATE: Final = 0o700
"""Mode of folders: a checkpoint holds the model and the sessions' secrets."""


class CheckpointError(OSError):
    """A data directory cannot be used, or a checkpoint cannot be written or read; the message says what to do."""


class InUseError(CheckpointError):
    """Another owner uses the data directory."""


class Store:
    """A data directory, which is created if it is missing. Raises `CheckpointError` if another owner uses it.

    A checkpoint is a folder. It is filled under a temporary name, and renamed once every byte is on the disk; only then
    are older ones removed, but for as many as are to be `kept`. So once a checkpoint was written, there is a complete
    one at any moment. With `keys` it is signed, and none is read that is not.
    """

    def __init__(self, folder: Path, kept: int = 2, keys: Keys | None = None) -> None:
        self.folder = folder
        self._kept = kept
        self._keys = keys
        self._lock = _locked(folder)
        forks.put_away_in_children(self)
        self.epoch: Epoch | None = None

    def begin_epoch(self) -> Epoch:
        """Takes the directory from whoever has it beside this process: checkpoints are written only in this epoch from
        now on. Raises `CheckpointError`."""
        try:
            self._remove_growing()  # on a full disk the epoch may have no room else
            self.epoch = Epoch(self.folder)
            self._remove_growing()  # an earlier owner that runs on would still complete it
        except OSError as error:
            raise CheckpointError(f"the data directory {self.folder} cannot be used: {error.strerror}") from error
        return self.epoch

    def _remove_growing(self) -> None:
        for leftover in self.folder.glob(".checkpoint-*"):
            _remove(leftover)

    def _give_room(self) -> None:
        """Removes what there is of a checkpoint that cannot be completed, but not what another owner writes by now."""
        with suppress(OSError):
            self._check_epoch()
            self._remove_growing()

    def _check_epoch(self) -> None:
        if self.epoch is not None:
            self.epoch.check()

    def close(self) -> None:
        """Releases the directory. Calling it again does nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def forked(self) -> None:
        """In a forked child: closes its copy of the lock, which would outlive the parent."""
        self.close()

    def newest(self) -> tuple[Path, Manifest] | None:
        """The newest undamaged checkpoint, or None. A damaged one is renamed, and logged as an error.

        Raises `CheckpointError` if all checkpoints are damaged, another release wrote the newest, or it is not signed.
        """
        for folder in self._checkpoints():
            try:
                return folder, Manifest.read(folder, keys=self._keys)
            except DamagedError as error:
                self._set_aside(folder, error)
            except ValueError as error:
                raise CheckpointError(str(error)) from error
        damaged = sorted(path.name for path in self._all())
        if damaged:
            raise CheckpointError(
                f"every checkpoint in {self.folder} is damaged: {', '.join(damaged)}. "
                "Restore the directory from a backup, or start with an empty one"
            )
        return None

    def newest_folder(self) -> Path | None:
        """The folder of the newest checkpoint that is not set aside, damaged or not; None if there is none."""
        return next(iter(self._checkpoints()), None)

    def kept(self) -> list[Path]:
        """The folders of the checkpoints that were not set aside, newest first."""
        return self._checkpoints()

    def write(self, fill: Callable[[Path], Manifest]) -> tuple[Path, Manifest]:
        """Writes a checkpoint and syncs it to the disk. The previous one stays valid if it raises `CheckpointError`;
        what was written is removed then.

        `fill` writes all files except the manifest into a folder, and returns the manifest without their hashes, but
        for those of files that are links to synced ones.
        """
        self._stay()
        known = self._checkpoints()
        number = 1 + max(map(_number, self._all()), default=0)
        final = self.folder / f"checkpoint-{number:06}"
        growing = self.folder / f".{final.name}"
        try:
            self._check_epoch()
            self._remove_growing()
            growing.mkdir(mode=_PRIVATE)
            manifest = fill(growing)
            self._complete(growing, manifest)
            self._check_epoch()
            files.publish(growing, final)
        except Exception as error:  # including MemoryError and protobuf's: the owner must report a failure
            self._give_room()
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or repr(error)
            before = f"{known[0].name} is still valid" if known else "there is no earlier one"
            raise CheckpointError(f"the checkpoint {final} could not be written: {reason}; {before}") from error
        for folder in self._checkpoints()[self._kept :]:
            shutil.rmtree(folder, ignore_errors=True)
        return final, manifest

    def _complete(self, folder: Path, manifest: Manifest) -> None:
        for path in sorted(folder.iterdir()):
            if path.name in manifest.files:
                continue
            files.sync_file(path)
            found = described(path)
            if found is None:
                raise CheckpointError(f"{path} cannot be read back")
            manifest.files[path.name] = found
        written = manifest.to_bytes()
        files.write_file(folder / NAME, written)
        if self._keys is not None:
            files.write_file(folder / SIGNATURE, self._keys.sign(written))

    def _stay(self) -> None:
        """Makes the directory again if it was removed, or another has its name: what was in it is gone all the same.

        Locks it again if only the lock was removed. Raises `CheckpointError` if another owner uses it by now.
        """
        try:
            if os.path.samestat(os.fstat(self._lock), (self.folder / _LOCK).stat()):
                return
        except FileNotFoundError:
            pass  # somebody has removed it; it is made again below
        except OSError as error:
            raise CheckpointError(f"the data directory {self.folder} cannot be used: {error.strerror}") from error
        lock = _locked(self.folder)
        os.close(self._lock)
        self._lock = lock
        _log.error(
            "the data directory %s, or its lock, was removed while its owner ran; it is made again, and has %d "
            "checkpoints",
            *(self.folder, len(self._checkpoints())),
        )

    def _set_aside(self, folder: Path, error: DamagedError) -> None:
        name = folder.with_name(f"{_DAMAGED}{folder.name}")
        _log.error("%s; it was renamed to %s, and what neither an earlier one nor a log has is lost", error, name)
        shutil.rmtree(name, ignore_errors=True)
        folder.rename(name)

    def _checkpoints(self) -> list[Path]:
        """The checkpoints that were not set aside, newest first."""
        return [path for path in self._all() if not path.name.startswith(_DAMAGED)]

    def _all(self) -> list[Path]:
        """All checkpoints, damaged ones included: their numbers are not used again."""
        return checkpoints_in(self.folder)


@contextmanager
def held_still(folder: Path) -> Iterator[None]:
    """Keeps owners from using a data directory while the block reads it; nothing in it is changed. Raises
    `CheckpointError` if one uses it, or it is none."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no data directory: there is no such folder")
    try:
        # Opening a FIFO in this way does not wait.
        lock = os.open(folder / _LOCK, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        yield  # a copy, or no owner has used it yet
        return
    except OSError as error:
        raise CheckpointError(f"{folder / _LOCK} cannot be read: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            raise CheckpointError(f"an owner uses the data directory {folder}: stop it first, or give a copy") from None
        yield
    finally:
        os.close(lock)


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints in a data directory, newest first, with those that were set aside because they are damaged."""
    there = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in there if _CHECKPOINT.fullmatch(path.name)), key=_number, reverse=True)


def parsed(folder: Path) -> pb.Checkpoint:
    """What a checkpoint holds, without tensors. Raises `CheckpointError` if the file cannot be read."""
    try:
        with open_regular(folder / STATE) as file:
            return pb.Checkpoint.FromString(file.read())
    except (OSError, DecodeError) as error:
        raise CheckpointError(f"{folder / STATE} cannot be read: {error}") from error


def finished(
    folder: Path,
    checkpoint: pb.Checkpoint,
    owner: str,
    incarnations: tuple[str, ...] = (),
    left_out: Sequence[dict[str, str]] = (),
) -> Manifest:
    """Writes the file of a checkpoint whose tensors are written. Returns the manifest, without the files."""
    files.write_file(folder / STATE, checkpoint.SerializeToString())
    return Manifest(
        owner=owner,
        incarnations=incarnations,
        written=datetime.now(UTC).isoformat(timespec="seconds"),
        version=RELEASE,
        objects=[_line(record) for record in checkpoint.objects],
        left_out=list(left_out),
    )


def _line(record: pb.ObjectRecord) -> dict[str, Any]:
    """An object's line in the manifest."""
    own: dict[str, Any] = {"name": record.name, "class": record.class_name}
    return own | ({"version": record.version} if record.HasField("optimizer") else {})


def _locked(folder: Path) -> int:
    """Makes a data directory if it is missing, and locks it; the descriptor of the lock file."""
    try:
        folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        # Opening a FIFO in this way does not wait.
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise CheckpointError(f"the data directory {folder} is a file") from None
    except IsADirectoryError:
        raise CheckpointError(f"{folder / _LOCK} is a directory, and not a file: remove it") from None
    except OSError as error:
        raise CheckpointError(
            f"the data directory {folder} cannot be used by user {os.getuid()}: {error.strerror}"
        ) from error
    try:
        if not stat.S_ISREG(os.fstat(lock).st_mode):
            raise CheckpointError(f"{folder / _LOCK} is a FIFO or a device, and not a file: remove it")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InUseError(f"another owner uses the data directory {folder}; give each its own") from None
    except BaseException:
        os.close(lock)
        raise
    return lock


def _remove(path: Path) -> None:
    """Removes a folder, or what else has its name."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _number(folder: Path) -> int:
    found = _CHECKPOINT.fullmatch(folder.name)
    return int(found[1]) if found else 0
