"""The settings of the example."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

DEFAULT_OUT = Path("out")
KILL_SECONDS = 5.0


@dataclass(frozen=True)
class Settings:
    """The settings of one run, with the defaults of the command line."""

    trainers: int = 2
    epochs: int | None = None
    """Passes over the training digits; None: as many as the data set needs."""
    data: Path | None = None
    """Directory with the four original MNIST files; None: scikit-learn's digits."""
    out: Path = DEFAULT_OUT
    """Directory for the report, the picture and the logs."""
    seed: int = 0
    batch_size: int = 32
    lr: float = 0.03
    momentum: float = 0.5
    device: str = "cpu"
    """Device of the network on the owner."""
    sync: bool = False
    """Whether trainers use the blocking form of the client."""
    chaos: float | None = None
    """Seconds after which the owner is killed, from each of its starts; None: it is not."""
    kills: int | None = None
    """Most kills; None: until the training is over."""

    def __post_init__(self) -> None:
        for name in ("trainers", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.epochs is not None and self.epochs < 1:
            raise ValueError("epochs must be at least 1")
        if self.chaos is not None and not 0 < self.chaos < float("inf"):
            raise ValueError("chaos must be a number of seconds above 0")
        if self.kills is not None and self.kills < 1:
            raise ValueError("kills must be at least 1")


def parse(arguments: list[str] | None = None) -> Settings:
    """Parses the command line; exits with code 2 if it is not valid."""
    default = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m examples.digits",
        description="Trains a ConvNet that is hosted on a parameter server with trainers in processes of their own.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--trainers", type=int, default=default.trainers, help="trainer processes")
    parser.add_argument("--epochs", type=int, help="passes over the digits (24, or 2 with --data, unless given)")
    parser.add_argument("--data", type=Path, help="directory with the four original MNIST files, plain or .gz")
    parser.add_argument("--out", type=Path, default=default.out, help="directory for report, picture and logs")
    parser.add_argument("--seed", type=int, default=default.seed, help="order and bending of the digits")
    parser.add_argument("--batch-size", type=int, default=default.batch_size, help="digits per step")
    parser.add_argument("--lr", type=float, default=default.lr, help="learning rate")
    parser.add_argument("--momentum", type=float, default=default.momentum, help="momentum of SGD")
    parser.add_argument("--device", default=default.device, help="where the owner keeps the network: cpu, cuda:0, ...")
    parser.add_argument("--sync", action="store_true", help="let trainers use the blocking form of the client")
    parser.add_argument(
        "--chaos", type=float, nargs="?", const=KILL_SECONDS, metavar="SECONDS",
        help=f"kill the owner whenever it has served for so many seconds ({KILL_SECONDS:g}), and start it again",
    )  # fmt: skip
    parser.add_argument("--kills", type=int, help="most kills (no limit unless given)")
    try:
        return Settings(**vars(parser.parse_args(arguments)))
    except ValueError as error:
        parser.error(str(error))
