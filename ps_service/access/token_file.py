"""The file of tokens: what an owner reads, and `ps-service token` writes. It has hashes, and no token."""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ps_service.access.entries import PREFIX, Entry, hash_of, parse
from ps_wire.errors import InvalidArgumentError, UnknownNameError

if TYPE_CHECKING:
    from ps_service.access.reread import Stamp


class TokenFile:
    """Reads and writes a file of tokens. Lines that are empty or begin with `#` stay as they are."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def stamp(self) -> Stamp:
        """Changes when the file does. Raises `InvalidArgumentError` if it cannot be read."""
        try:
            status = self.path.stat()
        except OSError as error:
            raise self._unusable("read", error) from None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def read(self) -> list[Entry]:
        """Its entries. Raises `InvalidArgumentError` if it cannot be read, or a line is not valid."""
        try:
            lines = self.path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise self._unusable("read", error) from None
        found = []
        for number, line in enumerate(lines, 1):
            if not _is_entry(line):
                continue
            try:
                found.append(parse(line))
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"{self.path}, line {number}: {error}") from None
        return found

    def add(
        self,
        name: str,
        roles: tuple[str, ...],
        expires: float | None = None,
        certificates: tuple[str, ...] = (),
        namespaces: tuple[tuple[str, tuple[str, ...]], ...] = (),
    ) -> str:
        """Adds an identity, and returns its new token, which is kept nowhere; with `certificates` it has none, and the
        result is empty. The file is made if there is none. Raises as `read`."""
        token = "" if certificates else f"{PREFIX}{secrets.token_urlsafe(32)}"
        entry = Entry(name, roles, hash_of(token) if token else "", expires, certificates, namespaces)
        with self._changing() as write:
            if self.path.exists():
                self.read()  # nothing is added to a file that owners cannot read
            write(lambda lines: [*lines, entry.line()])
        return token

    def revoke(self, name: str) -> int:
        """Removes all entries of an identity, and returns how many. Raises as `read`, and `UnknownNameError` if there
        is none."""
        with self._changing() as write:
            count = sum(each.name == name for each in self.read())
            if not count:
                raise UnknownNameError(f"{self.path} has no identity {name!r}")
            write(lambda lines: [each for each in lines if not (_is_entry(each) and parse(each).name == name)])
        return count

    @contextmanager
    def _changing(self) -> Iterator[Callable[[Callable[[list[str]], list[str]]], None]]:
        """Lets one process at a time change the file, which is replaced as a whole. Raises `InvalidArgumentError` if it
        cannot be written."""
        try:
            # A symbolic link stays, and what it names is replaced. (Path.resolve has no OSError for links in a circle.)
            path = Path(os.path.realpath(self.path))
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX)
                yield partial(_replace, path)
            finally:
                os.close(folder)
        except OSError as error:
            raise self._unusable("written", error) from None

    def _unusable(self, done: str, error: Exception) -> InvalidArgumentError:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        return InvalidArgumentError(f"the token file {self.path} cannot be {done}: {why}")


def _replace(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    """Puts changed lines in the place of a file. It keeps its owner, group and mode, so that who could read it still
    can."""
    before = None
    with suppress(FileNotFoundError):
        before = path.stat()
    lines = [] if before is None else path.read_text("utf-8").splitlines()
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write("".join(f"{each}\n" for each in change(lines)))
            file.flush()
            if before is not None:
                _keep_access(descriptor, before)
            os.fsync(descriptor)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _keep_access(descriptor: int, before: os.stat_result) -> None:
    now = os.fstat(descriptor)
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        os.fchown(descriptor, before.st_uid, before.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))


def _is_entry(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")
