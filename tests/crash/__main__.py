"""The crash test: `python -m tests.crash`, or `make crash-test`."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
import traceback
from contextlib import closing
from pathlib import Path

from tests.crash.crash import Crash
from tests.crash.events import Violation
from tests.crash.points import POINTS
from tests.crash.report import Report
from tests.crash.workloads import WORKLOADS
from tests.forking.process import Forking

KILLS = 12
"""Kills of a round."""


def arguments() -> argparse.Namespace:
    """What it is asked for."""
    parser = argparse.ArgumentParser(prog="crash-test", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long it runs, in whole rounds")
    parser.add_argument("--kills", type=int, default=0, help="ends after so many kills, if that is earlier")
    parser.add_argument("--seed", type=int, default=None, help="decides what is killed when; printed")
    parser.add_argument("--folder", type=Path, default=None, help="where the data is; a temporary folder otherwise")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="which ones, separated by commas")
    parser.add_argument("--points", action="store_true", help="lists the points, and ends")
    return parser.parse_args()


def main() -> int:
    asked = arguments()
    if asked.points:
        print(*POINTS, sep="\n")
        return 0
    seed = random.SystemRandom().randrange(10**6) if asked.seed is None else asked.seed
    folder = Path(tempfile.mkdtemp(prefix="crash-test-")) if asked.folder is None else asked.folder
    folder.mkdir(parents=True, exist_ok=True)
    print(f"crash test with --seed {seed}; {len(POINTS)} points; data in {folder}", flush=True)
    report = Report(folder)
    ends = time.monotonic() + 60 * asked.minutes
    with closing(Forking()) as forking:
        crash = Crash(forking, folder, seed, asked.workloads.split(","), report)
        try:
            crash.begin()
            while time.monotonic() < ends and not (asked.kills and report.kills >= asked.kills):
                crash.round(min(KILLS, asked.kills - report.kills) if asked.kills else KILLS)
        except Exception as error:
            crash.close()
            report.tell()
            what = str(error) if isinstance(error, Violation) else traceback.format_exc()
            print(f"\nFAILED in round {report.rounds} with --seed {seed} after {report.kills} kills:\n{what}")
            print(f"What owners have, what their disks have, and what they have told is kept in {folder}")
            return 1
        crash.close()
    report.tell()
    print("acknowledged and lost: 0; applied twice: 0")
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
