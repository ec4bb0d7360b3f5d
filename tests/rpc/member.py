"""A member of the group of these tests, as a process of its own; it serves until its standard input ends.

python -m tests.rpc.member NAME DIRECTORY
"""

from __future__ import annotations

import sys

import torch

from tests.rpc import fitting, leaves, raising, sharing, situations, tutorials
from trainer_client import rpc


def main(name: str, directory: str) -> None:
    """Joins the group, reports that, and leaves when it is told to."""
    torch.set_num_threads(1)
    rpc.init_rpc(
        name, directory=directory, allow=[situations, raising, sharing, leaves, fitting, tutorials], lease_seconds=1.5
    )
    print(f"{name} is there", flush=True)
    sys.stdin.read()
    rpc.shutdown(timeout=20)


if __name__ == "__main__":
    main(*sys.argv[1:])
