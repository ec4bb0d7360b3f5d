"""What the commands of the benchmarks have in common: options, and how SIGTERM ends them."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.rows import ROWS, Row, choose


class Rounds(NamedTuple):
    """How many turns each side has per row if the command line does not say.

    Attributes:
        normal: Without `--quick`.
        quick: With it.
    """

    normal: int
    quick: int


def new_parser(prog: str, description: str) -> argparse.ArgumentParser:
    """A parser with the options of every command."""
    parser = argparse.ArgumentParser(
        prog=prog, description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small and short, to see whether it works")
    parser.add_argument("--out", type=Path, default=Path("out"), help="directory for figures, picture and logs")
    parser.add_argument("--torch-threads", type=int, default=1, help="OMP_NUM_THREADS of every process")
    return parser


def add_rows(parser: argparse.ArgumentParser, rounds: Rounds, report: str) -> None:
    """Adds the options of commands that measure rows and write a report of this name."""
    turns = f"turns of each side per row ({rounds.normal}, or {rounds.quick} with --quick)"
    parser.add_argument("--rows", default="", help="only rows whose names contain this (or these, with commas)")
    parser.add_argument("--skip", default="", help="no rows whose names contain this (or one of these)")
    parser.add_argument("--rounds", type=int, help=turns)
    parser.add_argument("--readme", action="store_true", help=f"measure nothing; put out/{report} into the README")


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Checks the options of every command; ends the program with a message if one is wrong."""
    if options.torch_threads < 1:
        parser.error("--torch-threads must be at least 1")


def check_rows(
    parser: argparse.ArgumentParser, options: argparse.Namespace, rounds: Rounds, rows: Sequence[Row] = ROWS
) -> None:
    """The same with the options of `add_rows`. Then `rows` is the chosen rows, and `rounds` is their turns."""
    check(parser, options)
    try:
        options.rows = choose(words(options.rows), rows, words(options.skip))
    except ValueError as error:
        parser.error(str(error))
    options.rounds = options.rounds or (rounds.quick if options.quick else rounds.normal)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")


def words(text: str) -> list[str]:
    """The words of a text that are separated by commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def interrupt_on_sigterm() -> None:
    """Lets SIGTERM raise KeyboardInterrupt, as Ctrl-C does, so that child processes are ended."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
