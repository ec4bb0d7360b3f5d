"""The settings of the example."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path

from examples.token_vectors.corpus import standard_library


@dataclass(frozen=True)
class Settings:
    """The settings of one run, with the defaults of the command line."""

    source: Path = field(default_factory=standard_library)
    """A directory with Python files."""
    owners: int = 2
    trainers: int = 2
    epochs: int = 3
    batch_size: int = 4096
    dim: int = 64
    lr: float = 0.1
    """Of Adagrad."""
    window: int = 5
    """Largest distance of two identifiers that are beside each other."""
    negatives: int = 5
    threshold: float = 1e-3
    """Identifiers with a larger share of the text are left out sometimes."""
    sightings: int = 40
    """An identifier gets a row with so many look-ups; 1 for all."""
    max_rows: int = 8000
    """Most rows of a table on each owner."""
    seed: int = 0
    out: Path = Path("out")


def parse(arguments: list[str] | None = None) -> Settings:
    """Parses the command line; exits with code 2 if it is not valid."""
    default = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m examples.token_vectors",
        description="Learns vectors of the identifiers in Python source, in growing tables over owners.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--source", type=Path, default=default.source, help="a directory with Python files")
    parser.add_argument("--owners", type=int, default=default.owners, help="owner processes, which share both tables")
    parser.add_argument("--trainers", type=int, default=default.trainers, help="trainer processes")
    parser.add_argument("--epochs", type=int, default=default.epochs)
    parser.add_argument("--batch-size", type=int, default=default.batch_size, help="pairs per batch")
    parser.add_argument("--dim", type=int, default=default.dim, help="numbers in a vector")
    parser.add_argument("--lr", type=float, default=default.lr, help="learning rate (Adagrad)")
    parser.add_argument("--window", type=int, default=default.window, help="largest distance of a pair")
    parser.add_argument("--negatives", type=int, default=default.negatives, help="drawn identifiers for each pair")
    parser.add_argument(
        "--threshold", type=float, default=default.threshold, help="share of the text above which some are left out"
    )
    parser.add_argument(
        "--sightings", type=int, default=default.sightings, help="look-ups until a row comes; 1 for all"
    )
    parser.add_argument("--max-rows", type=int, default=default.max_rows, help="most rows of a table on each owner")
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--out", type=Path, default=default.out, help="directory for the picture and the figures")
    chosen = parser.parse_args(arguments)
    counts = (chosen.owners, chosen.trainers, chosen.epochs, chosen.batch_size, chosen.dim, chosen.window)
    if min(*counts, chosen.negatives, chosen.sightings, chosen.max_rows) < 1:
        parser.error("all numbers but --lr, --threshold and --seed must be at least 1")
    if not chosen.threshold > 0:
        parser.error("threshold must be more than 0")
    return Settings(**vars(chosen))
