"""The settings of a trainer of the cluster, from flags or the environment."""

from __future__ import annotations

import argparse
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from examples.digits.cluster.layers import cut

PREFIX = "PS_TRAINER_"


@dataclass(frozen=True)
class Settings:
    """The settings of one trainer, with the defaults of the command line."""

    directory: str = "127.0.0.1:50051"
    """Address of the owner that keeps the directory, as ``host:port``."""
    owners: tuple[str, ...] = ("ps0", "ps1")
    """Names of the owners that share the network; the first has its first layers."""
    model: str = "digits"
    """Prefix of the names of the shared objects; another prefix makes another network."""
    steps: int = 1500
    """Number of steps of all trainers together."""
    batch_size: int = 32
    lr: float = 0.03
    momentum: float = 0.5
    seed: int = 0
    """Seed of this trainer's batches; every trainer should have its own."""
    log_every: int = 25
    """A line is printed after this many own steps."""
    patience: float = 60.0
    """Seconds to wait for an owner that does not answer, and most seconds to wait for an answer."""
    grace: float = 5.0
    """Seconds that a pass may still take after SIGTERM."""
    data: Path | None = None
    """Directory with the four original MNIST files; None: scikit-learn's digits."""


def parse(arguments: list[str] | None = None, environment: Mapping[str, str] = os.environ) -> Settings:
    """Parses flags and ``PS_TRAINER_…`` variables; exits with code 2 if they are not valid."""
    parser = _parser(environment)
    settings = Settings(**vars(parser.parse_args(arguments)))
    try:
        cut(len(settings.owners))
    except ValueError as error:
        parser.error(str(error))
    return settings


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    default = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m examples.digits.cluster",
        description="Trains a ConvNet whose layers lie on several owners, together with any number of other trainers.",
        epilog=f"Each can also be set in the environment: --log-every as {PREFIX}LOG_EVERY, and so on.",
    )

    def add(name: str, kind: type | object, fallback: object, text: str) -> None:
        # argparse converts a default that is text like an argument, and names the flag if it is not valid.
        given = environment.get(PREFIX + name.upper().replace("-", "_")) or fallback
        parser.add_argument(f"--{name}", type=kind, default=given, metavar="…", help=text)  # type: ignore[arg-type]

    directory = environment.get("PS_DIRECTORY") or default.directory
    add("directory", str, directory, "the owner that keeps the directory, as host:port (%(default)s)")
    add("owners", _names, ",".join(default.owners), "names of the owners that share the network (%(default)s)")
    add("model", str, default.model, "how the names of the shared objects begin (%(default)s)")
    add("steps", _count, default.steps, "how many steps all trainers take together (%(default)s)")
    add("batch-size", _count, default.batch_size, "digits per step (%(default)s)")
    add("lr", float, default.lr, "learning rate of the shared SGD (%(default)s)")
    add("momentum", float, default.momentum, "momentum of the shared SGD (%(default)s)")
    add("seed", int, secrets.randbits(32), "of this trainer's batches (another one each time)")
    add("log-every", _count, default.log_every, "own steps from one line to the next (%(default)s)")
    add("patience", _seconds, default.patience, "seconds that an owner which is away is waited for (%(default)s)")
    add("grace", _seconds, default.grace, "seconds that a pass may still take after SIGTERM (%(default)s)")
    add("data", Path, None, "directory with the four original MNIST files (scikit-learn's digits)")
    return parser


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise argparse.ArgumentTypeError("at least one owner is needed")
    if len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"an owner is named twice in {text!r}")
    return names


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds
