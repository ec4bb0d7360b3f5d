"""`ps-service serve --reload`: starts an owner again when the files of its modules have changed."""

from __future__ import annotations

import ast
import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, TypeVar

from ps_wire.codec import sources

if TYPE_CHECKING:
    from ps_service.config import OwnerConfig

T = TypeVar("T")

_log = logging.getLogger(__name__)

_EVERY_SECONDS: Final = 0.25
"""Between two looks at the files. A file counts as changed once it has stayed the same from one look to the next: many
editors write it in several steps."""


class _State(NamedTuple):
    """What changes with the content of a file: the time (ns), the size, and the file itself, if it was replaced."""

    changed: int
    size: int
    number: int


class Watch:
    """The files of the modules `imports`, and of others of the same top-level packages. Made before they are imported:
    what is written later, even before the first look at the files, has changed.

    `file` is the one that has changed. `more` are files that are watched besides.
    """

    def __init__(self, imports: Iterable[str]) -> None:
        self.file = ""
        self.more: set[str] = set()
        self._packages: Final = {name.partition(".")[0] for name in imports}
        self._since: Final = time.time_ns()
        # What each file was like when it was loaded, and at the last look.
        self._loaded: dict[str, _State | None] = {}
        self._seen: dict[str, _State | None] = {}

    def made(self, make: Callable[[], T]) -> T:
        """What a function returns that imports the modules. If it fails, waits for a change of a file behind the error,
        and starts the process again; without such a file the error is raised."""
        try:
            return make()
        except Exception as error:
            self.more = _files_behind(error)
            if not self.more:
                raise
            _log.error("the modules of --import cannot be loaded", exc_info=error)
            _log.error("waiting for a change of %s", ", ".join(sorted(self.more)))
        while not self.changed():
            time.sleep(_EVERY_SECONDS)
        start_again()

    def tell(self, settings: OwnerConfig) -> None:
        """Says that the owner starts again because of `file`, which has changed, and with what."""
        kept = "without its objects, because it has no --data-dir"
        if settings.data_dir is not None:
            kept = f"with what is in {settings.data_dir}"
        _log.info("%s has changed: %s drains, and starts again %s", self.file, settings.name, kept)

    def _look(self) -> list[str]:
        """The files that have changed, and have stayed as they are since the last look."""
        now, time_now = {file: _state(file) for file in _files_of(self._packages) | self.more}, time.time_ns()
        for file, state in now.items():
            # Later files are those of modules that hosted code has imported just now.
            is_late = not self._seen and state is not None and self._since < state.changed < time_now
            self._loaded.setdefault(file, None if is_late else state)
        seen, self._seen = self._seen, now
        return [
            file
            for file, state in now.items()
            if state is not None and state != self._loaded[file] and state == seen.get(file)
        ]

    def changed(self) -> str:
        """A file that has changed, and can be loaded again as far as its syntax tells; empty if there is none. One with
        an error of syntax is told of once."""
        found = ""
        for file in self._look():
            try:
                ast.parse(sources.read(file), file)
                found = file
            except (SyntaxError, ValueError) as error:
                self._loaded[file] = self._seen[file]
                _log.warning("%s cannot be loaded, so the owner goes on with what it has: %s", file, error)
        return found

    async def wait(self) -> None:
        """Waits for a `file` that has changed."""
        while not self.file:  # there is no event for a file without another package
            try:
                self.file = self.changed()
            except Exception:  # an owner does not end, nor start again, because a file could not be looked at
                _log.exception("the files of the modules could not be looked at; it will be tried again")
            if not self.file:
                await asyncio.sleep(_EVERY_SECONDS)


def start_again(*flags: str) -> NoReturn:
    """Runs the command of this process anew, in this process, with more flags, which win over those before."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], *flags])


def _files_of(packages: set[str]) -> set[str]:
    """The files of all modules of these top-level packages that are loaded."""
    loaded = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] in packages]
    files = (getattr(module, "__file__", None) for module in loaded)
    return {file for file in files if isinstance(file, str) and file.endswith(".py")}


def _files_behind(error: BaseException | None) -> set[str]:
    """The files of a program, and not of installed packages, in which an error and its causes were raised."""
    found: set[str] = set()
    while error is not None:
        if isinstance(error, SyntaxError) and error.filename:
            found.add(error.filename)
        trace = error.__traceback__
        while trace is not None:
            found.add(trace.tb_frame.f_code.co_filename)
            trace = trace.tb_next
        error = error.__cause__ or error.__context__
    return {file for file in found if Path(file).is_file() and not _is_installed(file)}


def _is_installed(file: str) -> bool:
    own, standard = Path(__file__).parents[1], Path(os.__file__).parent
    return "site-packages" in Path(file).parts or Path(file).is_relative_to(own) or Path(file).is_relative_to(standard)


def _state(file: str) -> _State | None:
    with suppress(OSError):
        found = os.stat(file)
        return _State(found.st_mtime_ns, found.st_size, found.st_ino)
    return None
