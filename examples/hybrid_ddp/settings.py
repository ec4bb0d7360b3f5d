"""The settings of the example."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from ps_service import by_value


@by_value
@dataclass(frozen=True)
class Settings:
    """The settings of one run, with the defaults of the command line. They are sent to the trainers."""

    steps: int = 100
    seed: int = 0
    lr: float = 0.2

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError("steps must be at least 1")


def parse(arguments: list[str] | None = None) -> Settings:
    """Parses the command line; exits with code 2 if it is not valid."""
    default = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m examples.hybrid_ddp",
        description="Trains with DistributedDataParallel and a table on a parameter server, compared with one process.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--steps", type=int, default=default.steps, help="batches of each trainer")
    parser.add_argument("--seed", type=int, default=default.seed, help="first numbers of the layer, and the batches")
    parser.add_argument("--lr", type=float, default=default.lr, help="learning rate of SGD")
    try:
        return Settings(**vars(parser.parse_args(arguments)))
    except ValueError as error:
        parser.error(str(error))
