"""The settings of the example."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """The settings of one run, with the defaults of the command line."""

    rounds: int = 10
    """Number of steps with each number in flight."""
    batch_size: int = 256
    micro_batches: int = 8
    in_flight: tuple[int, ...] = (1, 2, 4, 8)
    """Numbers of micro-batches in flight to compare; ratios are relative to the first."""
    width: int = 64
    """Channels between the halves."""
    lr: float = 0.003
    seed: int = 0
    out: Path = Path("out")

    def __post_init__(self) -> None:
        for name in ("rounds", "batch_size", "micro_batches", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.batch_size % self.micro_batches:
            raise ValueError(f"a batch of {self.batch_size} does not make {self.micro_batches} equal micro-batches")
        if not self.in_flight or min(self.in_flight) < 1:
            raise ValueError("in_flight must be numbers of at least 1")
        if self.lr <= 0:
            raise ValueError("lr must be positive")


def parse(arguments: list[str] | None = None) -> Settings:
    """Parses the command line; exits with code 2 if it is not valid."""
    default = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m examples.pipeline",
        description="Trains a network that is split over two owners, with several micro-batches on their way at once.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=default.rounds, help="steps with each number in flight")
    parser.add_argument("--batch-size", type=int, default=default.batch_size, help="digits per step")
    parser.add_argument("--micro-batches", type=int, default=default.micro_batches, help="parts of a batch")
    parser.add_argument(
        "--in-flight", type=int, nargs="+", default=default.in_flight, help="parts on their way at once, to compare"
    )
    parser.add_argument("--width", type=int, default=default.width, help="channels between the halves")
    parser.add_argument("--lr", type=float, default=default.lr, help="learning rate of SGD")
    parser.add_argument("--seed", type=int, default=default.seed, help="initial weights and order of the digits")
    parser.add_argument("--out", type=Path, default=default.out, help="directory for the figures")
    chosen = vars(parser.parse_args(arguments))
    try:
        return Settings(**chosen | {"in_flight": tuple(chosen["in_flight"])})
    except ValueError as error:
        parser.error(str(error))
