"""A reader of the crash test: it tells what each version of an export has, and goes back to earlier ones.

python -m tests.crash.reader LOG FOLDER SEED

It writes a line for each version that it sees, see `told`.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

import ps_reader
from tests.crash.workloads.tables import IDS, digest

_EVERY: Final = 0.005
"""Seconds from one look to the next."""


def told(version: ps_reader.Version) -> dict[str, Any]:
    """The number of a version, and of each table what its rows are, as `digest`."""
    ids = np.arange(IDS)
    rows = {name: digest(table.look_up(ids, default=0.0)[0]) for name, table in sorted(version.tables.items())}
    return {"version": version.number, "rows": rows}


def opened(folder: Path) -> ps_reader.Reader:
    """A reader of the folder, once it has a version."""
    while True:
        try:
            return ps_reader.open(folder, every=_EVERY)
        except ps_reader.ExportError:
            time.sleep(_EVERY)


def follow(reader: ps_reader.Reader, choose: random.Random) -> None:
    """Tells what it reads, until it is killed."""
    last = 0
    while True:
        time.sleep(_EVERY)
        if reader.current.number == last:
            continue
        print(json.dumps(told(reader.current)), flush=True)
        last = reader.current.number
        with suppress(ps_reader.ExportError):  # it was removed meanwhile
            print(json.dumps(told(reader.rollback(choose.choice(reader.versions())))), flush=True)
        reader.follow()


def main() -> None:
    log, folder, seed = sys.argv[1:]
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    follow(opened(Path(folder)), random.Random(seed))


if __name__ == "__main__":
    main()
