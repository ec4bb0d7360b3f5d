"""What an owner does with the files under its data directory: with points before and after, and noted in the shadow.

The functions of `os` are replaced, so that no writer is forgotten, whatever part of the owner it is in.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ps_service.durability import files, tensors
from ps_service.durability.log import records
from ps_service.durability.manifest import NAME as MANIFEST
from ps_service.durability.store import STATE
from tests.crash.points import POINTS, Points
from tests.crash.shadow import Shadow

_REPLACED: Final = (
    *("fdatasync", "fsync", "mkdir", "open", "posix_fallocate", "pwritev", "remove", "rename", "replace", "rmdir"),
    "unlink",
)


class WatchedFiles:
    """Replaces the functions of `os` that change files; those of other folders go on as they are."""

    def __init__(self, shadow: Shadow, points: Points) -> None:
        self._shadow = shadow
        self._folder = str(shadow.folder)
        self._points = points
        self._own: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in _REPLACED}
        self._choose = random.Random(os.getpid())

    def install(self) -> None:
        """From now on."""
        for name in _REPLACED:
            setattr(os, name, getattr(self, f"_{name}"))
        # These write without the functions of `os`.
        self._write_file, files.write_file = files.write_file, self._whole
        self._save_file, tensors.save_file = tensors.save_file, self._tensors

    # Names

    def _inside(self, path: Any, folder: int | None = None) -> str | None:
        """A path relative to the data directory; None if it is elsewhere, and "" for the directory itself."""
        if isinstance(path, int):
            found = os.readlink(f"/proc/self/fd/{path}")
        else:
            found = os.fspath(path)
            if isinstance(found, bytes):
                return None
            if folder is not None:
                found = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), found)
        if found == self._folder:
            return ""
        return found[len(self._folder) + 1 :] if found.startswith(f"{self._folder}/") else None

    def _around(self, name: str, work: Callable[[], Any]) -> Any:
        if f"{name}.before" not in POINTS:
            return work()
        self._points.reach(f"{name}.before")
        result = work()
        self._points.reach(f"{name}.after")
        return result

    # Functions of os

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        inside = self._inside(path, dir_fd) if flags & os.O_CREAT else None
        is_new = inside is not None and not os.path.exists(path)
        descriptor: int = self._own["open"](path, flags, mode, dir_fd=dir_fd)
        if is_new and inside != "lock":
            self._shadow.note(made=inside)
        return descriptor

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        inside = self._inside(path, dir_fd)

        def work() -> None:
            self._own["mkdir"](path, mode, dir_fd=dir_fd)
            if inside:
                self._shadow.note(made=inside)

        self._around(f"{_kind(inside)}.make", work)

    def _rename(self, path: Any, name: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        inside, to = self._inside(path, src_dir_fd), self._inside(name, dst_dir_fd)

        def work() -> None:
            self._own["rename"](path, name, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            if inside and to:
                self._shadow.note(renamed=inside, to=to)

        before, after = _kind(inside), _kind(to)
        names = {("log", "spare"): "log.release", ("spare", "log"): "log.reuse"}
        self._around(names.get((before, after), f"{after}.rename"), work)

    _replace = _rename

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        inside = self._inside(path, dir_fd)

        def work() -> None:
            kept = ""
            if inside:
                with suppress(OSError):
                    kept = self._shadow.keep(Path(self._folder, inside))
            self._own["unlink"](path, dir_fd=dir_fd)
            if kept:
                self._shadow.note(removed=inside, kept=kept)

        self._around(f"{_kind(inside)}.remove", work)

    _remove = _unlink

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        inside = self._inside(path, dir_fd)

        def work() -> None:
            self._own["rmdir"](path, dir_fd=dir_fd)
            if inside:
                self._shadow.note(removed=inside)

        self._around(f"{_kind(inside)}.remove", work)

    def _sync(self, own: Callable[[int], None], descriptor: int) -> None:
        inside = self._inside(descriptor)

        def work() -> None:
            own(descriptor)
            if inside is None:
                return
            if os.path.isdir(os.path.join(self._folder, inside)):
                self._shadow.note(synced=inside)
            else:
                self._shadow.synced(descriptor)

        kind = _kind(inside)
        self._around("checkpoint.folder.sync" if kind == "checkpoint" else f"{kind}.sync", work)

    def _fsync(self, descriptor: int) -> None:
        self._sync(self._own["fsync"], descriptor)

    def _fdatasync(self, descriptor: int) -> None:
        self._sync(self._own["fdatasync"], descriptor)

    def _posix_fallocate(self, descriptor: int, offset: int, nbytes: int) -> None:
        kind = _kind(self._inside(descriptor))
        self._around(f"{kind}.allocate", lambda: self._own["posix_fallocate"](descriptor, offset, nbytes))

    def _pwritev(self, descriptor: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
        own = self._own["pwritev"]
        inside = self._inside(descriptor)
        if inside is None:
            return int(own(descriptor, buffers, offset, flags))
        nbytes = sum(map(len, buffers))
        if nbytes == records.HEADER_BYTES:
            name = "log.header.write"
        elif nbytes == records.ALIGNMENT and not any(map(any, map(bytes, buffers))):
            name = "log.erase"
        else:
            name = "log.body.write"
        torn = f"{name}.torn"
        if torn in POINTS and self._points.is_due(torn):
            own(descriptor, [b"".join(buffers)[: self._choose.randrange(nbytes)]], offset)
            self._points.end()
        return int(self._around(name, lambda: own(descriptor, buffers, offset, flags)))

    # Writers of whole files

    def _whole(self, path: Path, content: bytes) -> None:
        name = {STATE: "checkpoint.state.write", MANIFEST: "checkpoint.manifest.write"}.get(path.name)
        if name is None:
            self._write_file(path, content)
            return
        if self._points.is_due(f"{name}.torn"):
            path.write_bytes(content[: self._choose.randrange(len(content))])
            self._points.end()
        self._around(name, lambda: self._write_file(path, content))

    def _tensors(self, found: Any, path: Path) -> None:
        def work() -> None:
            self._save_file(found, path)
            self._shadow.note(made=self._inside(path))

        if self._points.is_due("checkpoint.tensors.write.torn"):
            work()
            os.truncate(path, self._choose.randrange(path.stat().st_size))
            self._points.end()
        self._around("checkpoint.tensors.write", work)


def _kind(inside: str | None) -> str:
    """What a path in a data directory is."""
    if inside is None:
        return "elsewhere"
    if not inside:
        return "folder"
    first, _, rest = inside.lstrip(".").partition("/")
    kind = {"log": "log", "free": "spare"}.get(first.partition("-")[0], first.partition("-")[0])
    return f"{kind}.file" if rest else kind
