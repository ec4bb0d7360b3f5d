"""The settings of the example."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """The settings of one run, with the defaults of the command line."""

    trainers: int = 4
    steps: int = 500
    """Gradients of each trainer, in each mode."""
    batch_size: int = 32
    """Digits per gradient of one trainer."""
    lr: float = 0.2
    seed: int = 0
    modes: tuple[str, ...] = ()
    """Names of the modes to run; none for all."""
    out: Path = Path("out")


def parse(arguments: list[str] | None = None) -> Settings:
    """Parses the command line; exits with code 2 if it is not valid."""
    default = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m examples.mpi_ps",
        description="A parameter server whose trainers have the whole model and push encoded gradients.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--trainers", type=int, default=default.trainers, help="trainer processes")
    parser.add_argument("--steps", type=int, default=default.steps, help="gradients of each trainer, in each mode")
    parser.add_argument("--batch-size", type=int, default=default.batch_size, help="digits per gradient")
    parser.add_argument("--lr", type=float, default=default.lr, help="learning rate of SGD")
    parser.add_argument("--seed", type=int, default=default.seed, help="first parameters, and order of the digits")
    parser.add_argument("--modes", nargs="*", default=default.modes, help="names of modes, as the table shows them")
    parser.add_argument("--out", type=Path, default=default.out, help="directory for the picture")
    chosen = parser.parse_args(arguments)
    chosen.modes = tuple(chosen.modes)
    if min(chosen.trainers, chosen.steps, chosen.batch_size) < 1:
        parser.error("trainers, steps and batch-size must be at least 1")
    return Settings(**vars(chosen))
