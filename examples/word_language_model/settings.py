"""What can be chosen about a run of the example."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch

# How each choice is explained on the command line.
_HELP = {
    "epochs": "passes over the text",
    "vocabulary": "words that have vectors of their own",
    "embedding": "size of a word's vector",
    "hidden": "size of the LSTM's state",
    "layers": "layers of the LSTM",
    "dropout": "share of numbers dropped in front of, within and behind the LSTM",
    "lr": "learning rate of SGD; a quarter of it after an epoch that brought nothing",
    "clip": "the norm, over all processes, to which gradients are clipped",
    "bptt": "words through which gradients go back",
    "batch_size": "columns of text that are read side by side",
    "seed": "initial weights and dropout",
    "out": "directory for figures and picture",
}


@dataclass(frozen=True)
class Settings:
    """One run's choices, with the defaults of the command line."""

    epochs: int = 16
    vocabulary: int = 2000
    embedding: int = 128
    hidden: int = 128
    layers: int = 2
    dropout: float = 0.2
    lr: float = 20.0
    clip: float = 0.25
    bptt: int = 35
    batch_size: int = 20
    seed: int = 0
    out: Path = Path("out")
    check_local: bool = False
    """Whether a local model takes the first steps beside the distributed one."""

    @property
    def dtype(self) -> torch.dtype:
        """Of all weights: where losses are compared, roundings should be small."""
        return torch.float64 if self.check_local else torch.float32

    def __post_init__(self) -> None:
        for name in ("epochs", "embedding", "hidden", "layers", "bptt", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.vocabulary < 3:
            raise ValueError("vocabulary must be at least 3")
        if not 0 <= self.dropout < 1:
            raise ValueError("dropout must be at least 0 and less than 1")
        if not (self.lr > 0 and self.clip > 0):
            raise ValueError("lr and clip must be positive")


def parse(arguments: list[str] | None = None) -> Settings:
    """Reads the command line; ends the process with code 2 when it makes no sense."""
    default = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m examples.word_language_model",
        description="Trains a word language model whose embedding table and decoder live in another process.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for name, text in _HELP.items():
        value = getattr(default, name)
        parser.add_argument(
            "--" + name.replace("_", "-"), type=Path if name == "out" else type(value), default=value, help=text
        )
    parser.add_argument(
        "--check-local",
        action="store_true",
        help="let a local model take the first steps too, without dropout and in float64, and compare every loss",
    )
    try:
        return Settings(**vars(parser.parse_args(arguments)))
    except ValueError as error:
        parser.error(str(error))
