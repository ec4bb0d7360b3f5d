"""The fuzzer: `python -m tests.fuzz`, or `make fuzz`.

Sends an owner process, over each transport and by unary calls, what a real trainer has sent before, with changes; and
has the readers of frames, values, checkpoints and logs read such things in its own process, which is much faster. An
innocent trainer trains with the same owner meanwhile. It is a finding if the owner ends, does not answer, writes a
traceback, answers with an internal error, or keeps what it held; if the innocent trainer waits too long, or has other
losses than without all that; and if a reader raises what it should not. The exit code is 1 then.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
import warnings
from pathlib import Path

import torch

from tests.fuzz.cases import load
from tests.fuzz.fuzz import Fuzz


def arguments() -> argparse.Namespace:
    """What it is asked for."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long it sends")
    parser.add_argument("--messages", type=int, default=0, help="ends after so many messages, if that is earlier")
    parser.add_argument("--seed", type=int, default=None, help="decides what is sent; printed")
    parser.add_argument("--targets", default="", help="which ones, separated by commas")
    parser.add_argument("--found", type=Path, default=Path("out/fuzz"), help="where findings are saved")
    parser.add_argument("--replay", type=Path, default=None, help="sends what is in such a file again, and ends")
    return parser.parse_args()


def main() -> int:
    asked = arguments()
    seed = random.SystemRandom().randrange(10**6) if asked.seed is None else asked.seed
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)  # of readers in this process
    torch.set_num_threads(1)
    print(f"fuzz with --seed {seed}", flush=True)
    fuzz = Fuzz(seed, asked.found, [each for each in asked.targets.split(",") if each])
    fuzz.begin()
    try:
        if asked.replay is not None:
            fuzz.again(load(asked.replay))
        else:
            _run(fuzz, asked)
        fuzz.end()
        tell(fuzz)
    finally:
        fuzz.close()
    return 1 if fuzz.findings else 0


def _run(fuzz: Fuzz, asked: argparse.Namespace) -> None:
    ends = time.monotonic() + 60 * asked.minutes

    def is_over() -> bool:
        return time.monotonic() > ends or 0 < asked.messages <= fuzz.messages.total()

    while not is_over():
        fuzz.round(is_over)


def tell(fuzz: Fuzz) -> None:
    """Prints the table."""
    for title, targets in (("read in this process", fuzz.readers), ("sent to an owner", fuzz.senders)):
        names = [each.name for each in targets]  # type: ignore[attr-defined]
        print(f"{title}: {sum(fuzz.messages[name] for name in names):,} messages")
        for name in names:
            seconds = fuzz.seconds[name]
            rate = fuzz.messages[name] / seconds if seconds else 0.0
            print(f"  {name:12} {fuzz.messages[name]:12,} {rate:10,.0f} a second")
    for sender in fuzz.senders:
        print(f"  {sender.name}: {', '.join(f'{count:,} {name}' for name, count in sender.counts.items())}")
    innocent = fuzz.innocent
    print(
        f"{fuzz.messages.total():,} messages; the innocent trainer made {len(innocent.losses):,} passes, the slowest "
        f"in {innocent.slowest:.2f} s; findings: {len(fuzz.findings)} ({len(set(fuzz.findings))} different)"
    )


if __name__ == "__main__":
    sys.exit(main())
