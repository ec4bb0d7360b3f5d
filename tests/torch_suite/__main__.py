"""The command: runs the suite, prints the count, and writes `torch-suite.md` and `torch-suite.json`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from tests.torch_suite import catalogue, results
from tests.torch_suite.results import FAILED, PASSED, Result


def main(arguments: list[str] | None = None) -> int:
    """Runs the suite. It measures: the result is 0 also if tests fail, unless `--expect` asks for more passes."""
    chosen = _parse(arguments)
    if chosen.page:
        results.rewrite_page(chosen.out)
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    try:
        found = _run(chosen)
    except KeyboardInterrupt:
        print("stopped; nothing is left running")
        return 130
    results.write(chosen.out, found)
    _show(found)
    print(f"\n{results.count(found)}; {time.monotonic() - began:.0f} s; {chosen.out / 'torch-suite.md'}")
    passed = sum(result.verdict == PASSED for result in found)
    if passed < chosen.expect:
        print(f"{passed} have passed, and {chosen.expect} were expected")
        return 1
    return 0


def _run(chosen: argparse.Namespace) -> list[Result]:
    # The help and the page need none of torch's modules. Their errors are to end with what went wrong.
    os.environ["PYTORCH_PRINT_REPRO_ON_FAILURE"] = "0"
    from tests.torch_suite import facade, running

    warnings.simplefilter("ignore")
    tests = catalogue.tests(chosen.words)
    logs = chosen.out / "torch-suite-logs" if chosen.stderr else None
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
        for old in logs.glob("*.txt"):
            old.unlink()
    found: list[Result] = []
    with closing(running.run(tests, facade.load(), chosen.jobs, chosen.seconds, logs)) as run:
        for result in run:
            found.append(result)
            if result.verdict in (PASSED, FAILED):
                said = (f"{len(found)}/{len(tests)}", result.verdict, result.full_name, result.last_line[:150])
                print(*said, flush=True)
    order = {(test.file, test.cls, test.name): number for number, test in enumerate(tests)}
    return sorted(found, key=lambda result: order[result[:3]])


def _show(found: Sequence[Result]) -> None:
    print("", results.table(found), "", "not applicable:", results.reasons(found), sep="\n")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.torch_suite",
        description="Torch's own tests of its rpc, on this project.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("words", nargs="*", help="only tests whose Class.test contains one of these")
    parser.add_argument("--jobs", type=int, default=2, help="tests that run at once")
    parser.add_argument("--seconds", type=float, default=30.0, help="the most time of a test")
    parser.add_argument("--stderr", action="store_true", help="keep the output of tests that fail in torch-suite-logs/")
    parser.add_argument("--expect", type=int, default=0, help="end with code 1 if fewer pass")
    parser.add_argument("--out", type=Path, default=Path("out"), help="directory for the results")
    parser.add_argument("--page", action="store_true", help="run nothing; put the last results into the page of docs")
    chosen = parser.parse_args(arguments)
    if chosen.jobs < 1 or chosen.seconds <= 0:
        parser.error("--jobs must be at least 1, and --seconds positive")
    return chosen


if __name__ == "__main__":
    sys.exit(main())
