"""The settings of the example."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from ps_service import by_value


@by_value
@dataclass(frozen=True)
class Settings:
    """The settings of one run, with the defaults of the command line. They are sent to the trainers."""

    trainers: int = 4
    steps: int = 200
    """Gradients of each trainer, in every round."""
    batch_size: int = 32
    lr: float = 0.1
    seed: int = 0
    rounds: int = 3
    """Number of measurements of each way."""

    def __post_init__(self) -> None:
        for name in ("trainers", "steps", "batch_size", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")


def parse(arguments: list[str] | None = None) -> Settings:
    """Parses the command line; exits with code 2 if it is not valid."""
    default = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m examples.batched_updates",
        description="A parameter server that steps once for the gradients of all trainers, or once for each.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--trainers", type=int, default=default.trainers, help="trainer processes")
    parser.add_argument("--steps", type=int, default=default.steps, help="gradients of each trainer, in every round")
    parser.add_argument("--batch-size", type=int, default=default.batch_size, help="digits per gradient")
    parser.add_argument("--lr", type=float, default=default.lr, help="learning rate of SGD")
    parser.add_argument("--seed", type=int, default=default.seed, help="first parameters, and order of the digits")
    parser.add_argument("--rounds", type=int, default=default.rounds, help="how often either way is measured")
    try:
        return Settings(**vars(parser.parse_args(arguments)))
    except ValueError as error:
        parser.error(str(error))
