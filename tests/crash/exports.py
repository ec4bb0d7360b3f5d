"""The export of the tables of the crash test, and a reader of it: both are killed, too."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import ps_reader
from tests.crash import reader
from tests.crash.events import Violation
from tests.crash.processes import PATIENCE, OwnerProcess
from tests.crash.workloads.workload import Horizon
from tests.forking.process import Forked, Forking

_EVERY: Final = 0.02
"""Seconds from one version to the next."""


class Export:
    """A process that exports tables and follows them, one that reads the versions, and what that has told of each."""

    def __init__(self, forking: Forking, folder: Path, owners: Sequence[OwnerProcess], tables: Sequence[str]) -> None:
        self._forking = forking
        self._folder = folder
        self._path = folder / "export"
        self._owners = owners
        self._tables = tables
        self._processes: dict[str, Forked] = {}
        self._lives = 0
        self._changed = threading.Condition()
        # The rows of each version, by the name of their table.
        self._told: dict[int, Mapping[str, str]] = {}
        self._wrong = ""
        self._checked = 0

    def begin(self) -> None:
        """Starts both."""
        self.start("exporter")
        self.start("reader")

    def start(self, what: str) -> None:
        """Kills the `exporter` or the `reader`, if there is one, and starts it."""
        if what in self._processes:
            _end(self._processes[what])
        log = str(self._folder / f"{what}.log")
        self._processes[what] = self._forking.start(f"tests.crash.{what}", log, str(self._path), *self._arguments(what))
        if what == "reader":
            threading.Thread(target=self._listen, args=(self._processes[what],), daemon=True).start()

    def _arguments(self, what: str) -> Sequence[str]:
        if what == "reader":
            self._lives += 1
            return [str(self._lives)]
        first, *others = [each.address for each in self._owners]
        beside = [argument for each in others for argument in ("--beside", each)]
        tables = [argument for each in self._tables for argument in ("--table", each)]
        return [first, *beside, *tables, "--follow", "--every", str(_EVERY), "--quiet"]

    def _listen(self, process: Forked) -> None:
        for line in process.stdout:
            with suppress(json.JSONDecodeError):  # it was killed while it wrote
                self._tell(**json.loads(line))

    def _tell(self, version: int, rows: Mapping[str, str]) -> None:
        with self._changed:
            if self._told.setdefault(version, rows) != rows:
                self._wrong = f"version {version} of the export had the rows {self._told[version]}, and {rows} later"
            self._changed.notify_all()

    async def check(self, passed: Mapping[str, Sequence[str]], horizon: Horizon) -> None:
        """Waits until the export has what the owners have now, and looks at all versions that were read meanwhile.
        `passed` has what the rows of each table have been since the last time, in order. Raises
        `Violation`."""
        version = await self._version_of(time.time())
        newest = {name: rows[-1] for name, rows in passed.items()}
        if (found := reader.told(version)["rows"]) != newest:
            raise Violation(f"version {version.number} of the export has the rows {found}, and the owners {newest}")
        told = await asyncio.to_thread(self._wait_told, version.number)
        for owner, (name, rows) in zip(self._owners, passed.items(), strict=True):
            if not horizon.lossy(owner.name):
                check_order(name, rows, {number: each[name] for number, each in told.items()})
        self._checked = version.number

    async def _version_of(self, moment: float) -> ps_reader.Version:
        """The newest version, once it has what the owners have at a moment."""
        until = time.monotonic() + PATIENCE
        while True:
            self.check_processes()
            with suppress(ps_reader.ExportError), ps_reader.open(self._path, every=PATIENCE) as opened:
                if opened.as_of >= moment:
                    return opened.current
            if time.monotonic() > until:
                raise Violation(f"the export has not come within {PATIENCE} s to what the owners had then")
            await asyncio.sleep(_EVERY)

    def _wait_told(self, version: int) -> dict[int, Mapping[str, str]]:
        """What was read of the versions since that of the last check, once the reader has come to this one."""
        with self._changed:
            if not self._changed.wait_for(lambda: max(self._told, default=0) >= version, PATIENCE):
                raise Violation(f"the reader has not come to version {version} within {PATIENCE} s")
            if self._wrong:
                raise Violation(self._wrong)
            return {number: each for number, each in sorted(self._told.items()) if number >= self._checked}

    def check_processes(self) -> None:
        """Raises `Violation` if one of them has ended by itself."""
        for what, process in self._processes.items():
            if process.poll() is not None:
                raise Violation(f"the {what} has ended with {process.returncode}; see {self._folder / what}.log")

    def close(self) -> None:
        """Ends both."""
        for each in self._processes.values():
            _end(each)
        self._processes.clear()


def _end(process: Forked) -> None:
    process.kill()
    process.wait(PATIENCE)
    process.stdin.close()


def check_order(name: str, passed: Sequence[str], told: Mapping[int, str]) -> None:
    """Raises `Violation` if versions of a table have rows that it has not had, or had before an earlier version."""
    at = 0
    for number, each in told.items():
        if each not in passed[at:]:
            what = "goes back to rows" if each in passed else "has rows that were never there"
            raise Violation(f"version {number} of the export {what}: {each} of {name}, after {passed[at]} in {passed}")
        at = passed.index(each, at)
