"""The process that has the embedding table and the decoder; it does what it is asked until all are done."""

from __future__ import annotations

import argparse

import torch

from examples.members import gather, serve
from trainer_client import rpc

PS = "ps"
TRAINER = "trainer"


def main(arguments: list[str] | None = None) -> None:
    """Joins the trainer's group, and leaves it with the trainer."""
    parser = argparse.ArgumentParser(prog="python -m examples.word_language_model.ps", description="Runs the owner.")
    parser.add_argument("--directory", required=True, help="the trainer, as host:port")
    parser.add_argument("--seed", type=int, default=0, help="of the dropout")
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    rpc.init_rpc(PS, directory=options.directory, allow=["examples.word_language_model.model"])
    gather([PS, TRAINER])
    serve([PS, TRAINER])


if __name__ == "__main__":
    main()
