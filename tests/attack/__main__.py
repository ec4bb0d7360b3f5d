"""The attacks: `python -m tests.attack`, or `make attack`.

Tries each attack on an owner of its own in this process, on loopback addresses only, while an innocent trainer trains
with the same owner. Prints a table: attack, tried, outcome. The exit code is 1 if one does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import warnings
from pathlib import Path

import torch

from tests.attack import attacks
from tests.attack.attack import ATTACKS
from tests.attack.report import show, write
from tests.attack.run import Outcome, outcomes


def arguments() -> argparse.Namespace:
    """What it is asked for."""
    parser = argparse.ArgumentParser(prog="attack", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which attacks; all of {len(ATTACKS)} by default")
    parser.add_argument("--out", type=Path, default=None, help="a folder for attacks.md and attacks.json")
    parser.add_argument("--list", action="store_true", help="prints the names, and ends")
    return parser.parse_args()


async def run(names: list[str]) -> list[Outcome]:
    """Tries the attacks of these names."""
    found = []
    async for each in outcomes(ATTACKS[name] for name in names):
        print(f"{each.attack.name}: {each.words}", file=sys.stderr, flush=True)
        found.append(each)
    return found


def main() -> int:
    asked = arguments()
    if unknown := set(asked.names) - set(ATTACKS):
        print(f"there is no attack {', '.join(sorted(unknown))}; --list names them", file=sys.stderr)
        return 2
    if asked.list:
        print("\n".join(ATTACKS))
        return 0
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    found = asyncio.run(run(asked.names or list(ATTACKS)))
    show(found)
    if asked.out is not None:
        write(found, asked.out)
    return 1 if any(each.broken for each in found) else 0


if __name__ == "__main__":
    assert attacks.MODULES
    sys.exit(main())
