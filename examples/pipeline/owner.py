"""The program of an owner, which hosts one half of the network until all members leave."""

from __future__ import annotations

import argparse
import logging

import torch

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
    # It is meant to wait in shutdown() for as long as the trainer works.
    logging.getLogger("trainer_client").setLevel(logging.ERROR)
    rpc.init_rpc(options.name, directory=options.directory, allow=[options.allow])
    rpc.barrier(MEMBERS)
    rpc.shutdown(group=MEMBERS)


if __name__ == "__main__":
    main()
