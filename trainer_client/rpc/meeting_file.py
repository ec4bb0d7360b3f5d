"""A file through which the members of a group find its directory, as with `init_method="file:///path"`."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import unquote, urlsplit

from ps_wire.errors import MIXED_GROUPS, InvalidArgumentError, PsError, UnavailableError
from ps_wire.regular_files import NotRegularError, open_regular


class Meeting(NamedTuple):
    """What stands in the file: where the directory is, and whether the process that keeps it still runs.

    If not, the file is of an earlier run, or the group is over. `world_size` is 0 for an open group.
    """

    address: str
    world_size: int
    there: bool


class MeetingFile:
    """The file. The process with the directory holds a lock on it for as long as it runs.

    It has `.rpc` behind the path that the members were given, because a process group of torch may use that.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(f"{path}.rpc")
        self._descriptor = -1

    @classmethod
    def of(cls, init_method: str) -> Self | None:
        """The file that an `init_method` names; None if it names none."""
        url = urlsplit(init_method)
        if url.scheme != "file":
            return None
        path = unquote(url.path)
        if url.netloc or not path.strip("/"):
            raise InvalidArgumentError(f"init_method {init_method!r} names no file; it is like file:///tmp/group")
        if not os.path.isdir(os.path.dirname(path)):
            raise InvalidArgumentError(f"init_method {init_method!r} names a file in a directory that does not exist")
        return cls(path)

    def take(self, world_size: int) -> None:
        """Takes the lock, unless another process has it, for a process that may keep the directory.

        Raises `UnavailableError` if the directory of this open group is gone, and `InvalidArgumentError` as `read`.
        """
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return
        if not self._is_current(descriptor):
            os.close(descriptor)
            return
        self._descriptor = descriptor
        try:
            before = self.read(world_size)
            if before is not None and not world_size:
                raise UnavailableError(
                    f"the member that kept the directory of this open group, at {before.address}, has gone, and others "
                    f"may be left; remove {self.path} if it is of an earlier run"
                )
        except PsError:
            self.leave(over=False)
            raise

    @property
    def taken(self) -> bool:
        """Whether this process has the lock."""
        return self._descriptor >= 0

    def publish(self, address: str, world_size: int) -> None:
        """Writes where the directory is. The lock must have been taken."""
        text = json.dumps({"address": address, "world_size": world_size}).encode()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text, 0)

    def leave(self, over: bool) -> None:
        """Gives the lock back, if this process has it, and removes the file if the group is over."""
        if self.taken:
            if over:
                with suppress(OSError):
                    self.path.unlink()
            os.close(self._descriptor)
            self._descriptor = -1

    def read(self, world_size: int) -> Meeting | None:
        """What stands there; None if there is nothing yet.

        Raises `InvalidArgumentError` if the group is open and this process has a `world_size`, or the other way round;
        or if something else than a file has the name.
        """
        try:
            with open_regular(self.path) as file:
                found = json.loads(file.read() or b"{}")
                meeting = Meeting(found["address"], found["world_size"], not _lockable(file.fileno()))
        except NotRegularError as error:
            raise InvalidArgumentError(str(error)) from None
        except (FileNotFoundError, ValueError, KeyError):
            return None
        if (meeting.world_size > 0) != (world_size > 0):
            raise InvalidArgumentError(
                f"{MIXED_GROUPS} The group in {self.path} was begun with world_size={meeting.world_size}, and this "
                f"process has {world_size}; remove the file if it is of an earlier run"
            )
        return meeting

    def _is_current(self, descriptor: int) -> bool:
        """Whether an open file is still the one at the path, and was not removed."""
        try:
            return os.path.samestat(os.fstat(descriptor), self.path.stat())
        except FileNotFoundError:
            return False

    def __str__(self) -> str:
        return str(self.path)


def _lockable(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
