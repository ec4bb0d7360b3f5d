"""The program of an owner, which hosts one half of the network until all members leave."""

from __future__ import annotations

import argparse

import torch

from examples.members import gather, serve
from trainer_client import rpc

TRAINER = "trainer"
SHARDS = ("shard1", "shard2")
MEMBERS = (TRAINER, *SHARDS)


def main(arguments: list[str] | None = None) -> None:
    """Joins the trainer's group, and leaves it together with the other members."""
    parser = argparse.ArgumentParser(prog="python -m examples.pipeline.owner", description="Runs one owner.")
    parser.add_argument("name", choices=SHARDS, help="its name in the group")
    parser.add_argument("--directory", required=True, help="the trainer, as host:port")
    parser.add_argument("--allow", default="examples.pipeline.shards", help="the module whose classes it hosts")
    options = parser.parse_args(arguments)
    # Both owners work at once, so each gets one core.
    torch.set_num_threads(1)
    rpc.init_rpc(options.name, directory=options.directory, allow=[options.allow])
    gather(MEMBERS)
    serve(MEMBERS)


if __name__ == "__main__":
    main()
