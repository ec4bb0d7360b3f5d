"""The settings of the example."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from examples.recommender.clicks import Clicks
from examples.recommender.criteo import CriteoFile
from examples.recommender.planted import Planted

DEMO_STEPS = 800


@dataclass(frozen=True)
class Settings:
    """The settings of one run, with the defaults of the command line."""

    owners: int = 2
    trainers: int = 2
    steps: int | None = None
    """Batches of all trainers together; None for 800 generated ones, or all of a file."""
    batch_size: int = 512
    lr: float = 0.003
    """Of Adam, for the dense part."""
    table_lr: float = 0.05
    """Of Adagrad, for the tables."""
    init_std: float = 0.03
    """Standard deviation of new rows."""
    held_out: int = 20_000
    """Most clicks to test with."""
    tolerance: float = 0.01
    """Most by which the AUC may be below that of one process. The first hundred steps differ by more."""
    seed: int = 0
    data: Path | None = None
    """A file in Criteo's format; None for generated clicks."""
    out: Path = Path("out")


class Source(Protocol):
    """Clicks to train on, and others to test with."""

    @property
    def name(self) -> str:
        """What they are."""

    @property
    def steps(self) -> int:
        """Number of batches to train on."""

    def batches(self, rank: int = 0, trainers: int = 1) -> Iterator[Clicks]:
        """The batches of one trainer."""

    def held_out(self) -> Clicks:
        """The clicks to test with."""


def source_of(settings: Settings) -> Source:
    """The clicks that the settings name.

    Raises:
        CriteoError: The file is too short, or in another format.
        OSError: It cannot be read.
    """
    if settings.data is not None:
        return CriteoFile(settings.data, settings.batch_size, settings.steps, settings.held_out)
    return Planted(settings.seed, settings.batch_size, settings.steps or DEMO_STEPS, settings.held_out)


def is_short(settings: Settings) -> bool:
    """Whether a run has fewer steps than there are with the defaults."""
    return settings.steps is not None and (settings.data is not None or settings.steps < DEMO_STEPS)


def parse(arguments: list[str] | None = None) -> Settings:
    """Parses the command line; exits with code 2 if it is not valid."""
    default = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m examples.recommender",
        description="Trains a DLRM whose tables are split over owners.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--owners", type=int, default=default.owners, help="owner processes, which share every table")
    parser.add_argument("--trainers", type=int, default=default.trainers, help="trainer processes")
    parser.add_argument("--steps", type=int, help=f"batches of all trainers ({DEMO_STEPS}, or all with --data)")
    parser.add_argument("--batch-size", type=int, default=default.batch_size, help="clicks per batch")
    parser.add_argument("--lr", type=float, default=default.lr, help="learning rate of the dense part (Adam)")
    parser.add_argument("--table-lr", type=float, default=default.table_lr, help="learning rate of rows (Adagrad)")
    parser.add_argument("--init-std", type=float, default=default.init_std, help="standard deviation of new rows")
    parser.add_argument("--held-out", type=int, default=default.held_out, help="most clicks to test with")
    parser.add_argument("--tolerance", type=float, default=default.tolerance, help="most AUC below that of one process")
    parser.add_argument("--seed", type=int, default=default.seed, help="of first values, and of generated clicks")
    parser.add_argument("--data", type=Path, help="a file in Criteo's text format instead of generated clicks")
    parser.add_argument("--out", type=Path, default=default.out, help="directory for the picture and the figures")
    parser.epilog = "With --ratings [FILE], NeuMF or GMF on ratings instead: see --ratings --help."
    chosen = parser.parse_args(arguments)
    steps = 1 if chosen.steps is None else chosen.steps
    if min(chosen.owners, chosen.trainers, chosen.batch_size, chosen.held_out, steps) < 1:
        parser.error("owners, trainers, steps, batch-size and held-out must be at least 1")
    return Settings(**vars(chosen))
