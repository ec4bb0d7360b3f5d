"""The settings of training on ratings."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from examples.recommender.ratings import planted
from examples.recommender.ratings.model import MODELS
from examples.recommender.ratings.movielens import read
from examples.recommender.ratings.split import LeaveOneOut


@dataclass(frozen=True)
class Settings:
    """The settings of one run, with the defaults of the command line."""

    ratings: Path | None = None
    """A file in one of the formats of MovieLens; None for generated ratings."""
    owners: int = 2
    trainers: int = 2
    model: str = "neumf"
    factors: int = 8
    negatives: int = 4
    """Pairs with an item that the user has not rated, for each that the user has."""
    epochs: int = 5
    steps: int | None = None
    """Most batches of all trainers together."""
    batch_size: int = 512
    lr: float = 0.003
    """Of Adam, for the dense part."""
    table_lr: float = 0.005
    """Of lazy Adam, for the tables."""
    init_std: float = 0.01
    """Standard deviation of new rows."""
    tolerance: float = 0.03
    """Most by which HR@10 may be below that of one process."""
    seed: int = 0
    out: Path = Path("out")


def source_of(settings: Settings) -> LeaveOneOut:
    """What the settings say to train on.

    Raises:
        RatingsError: The file has too few ratings, or another format.
        OSError: It cannot be read.
    """
    ratings = planted.draw(settings.seed).ratings if settings.ratings is None else read(settings.ratings)
    return LeaveOneOut(ratings, settings.seed, settings.batch_size, settings.negatives, settings.epochs, settings.steps)


def parse(arguments: list[str] | None = None) -> Settings:
    """Parses the command line; exits with code 2 if it is not valid."""
    default = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m examples.recommender",
        description="Trains NeuMF or GMF on ratings, with tables of users and items that are split over owners.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--ratings", type=Path, nargs="?", help="a file like those of MovieLens; generated without")
    parser.add_argument("--owners", type=int, default=default.owners, help="owner processes, which share both tables")
    parser.add_argument("--trainers", type=int, default=default.trainers, help="trainer processes")
    parser.add_argument("--model", choices=sorted(MODELS), default=default.model)
    parser.add_argument("--factors", type=int, default=default.factors, help="numbers before the last layer")
    parser.add_argument("--negatives", type=int, default=default.negatives, help="drawn items for each rated one")
    parser.add_argument("--epochs", type=int, default=default.epochs)
    parser.add_argument("--steps", type=int, help="most batches of all trainers")
    parser.add_argument("--batch-size", type=int, default=default.batch_size, help="pairs per batch")
    parser.add_argument("--lr", type=float, default=default.lr, help="learning rate of the dense part (Adam)")
    parser.add_argument("--table-lr", type=float, default=default.table_lr, help="learning rate of rows (lazy Adam)")
    parser.add_argument("--init-std", type=float, default=default.init_std, help="standard deviation of new rows")
    parser.add_argument("--tolerance", type=float, default=default.tolerance, help="most HR@10 below one process")
    parser.add_argument("--seed", type=int, default=default.seed, help="of first values, negatives and ratings")
    parser.add_argument("--out", type=Path, default=default.out, help="directory for the picture and the figures")
    chosen = parser.parse_args(arguments)
    counts = (chosen.owners, chosen.trainers, chosen.factors, chosen.epochs, chosen.batch_size, chosen.negatives)
    if min(*counts, 1 if chosen.steps is None else chosen.steps) < 1:
        parser.error("owners, trainers, factors, negatives, epochs, steps and batch-size must be at least 1")
    return Settings(**vars(chosen))
