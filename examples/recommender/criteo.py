"""Reads Criteo's published text format.

A line has 40 fields with tabs between them: the label, 13 integers, and 26 values of eight hexadecimal digits. Any of
the features may be missing; its field is empty then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from examples.recommender.clicks import CATEGORIES, COUNTS, Clicks, make_clicks

HELD_OUT: Final = 0.1
"""The most of a file that is held out. It is the end, because lines are in the order of time."""

_LINE: Final = re.compile(rf"[01](\t(-?\d{{1,18}})?){{{COUNTS}}}(\t([0-9a-fA-F]{{8}})?){{{CATEGORIES}}}")
_CHUNK_BYTES: Final = 1 << 20


class CriteoError(ValueError):
    """A file is not in Criteo's format; the message names the line."""


class CriteoFile:
    """The clicks of a file. Its end is held out.

    Args:
        path: The file.
        batch_size: Lines in a batch.
        steps: Most batches to train on; None for all.
        held_out: Most lines that are held out.

    Attributes:
        steps: Number of batches to train on. What does not fill a batch is left out.

    Raises:
        CriteoError: There are too few lines for one batch.
        OSError: The file cannot be read.
    """

    name = "clicks in Criteo's format"

    def __init__(self, path: Path, batch_size: int, steps: int | None = None, held_out: int = 20_000) -> None:
        self._path = path
        self._batch_size = batch_size
        lines = _count_lines(path)
        self._held_out = min(int(lines * HELD_OUT), held_out)
        self._train = lines - self._held_out
        self.steps = min(steps or lines, self._train // batch_size)
        if not self.steps or not self._held_out:
            raise CriteoError(f"{path} has {lines} lines: too few for a batch of {batch_size} and a held-out tenth")

    def batches(self, rank: int = 0, trainers: int = 1) -> Iterator[Clicks]:
        """Every batch once, in the order of the file; with several trainers each gets every n-th of them.

        Raises:
            CriteoError: A line is not in the format.
        """
        with self._path.open(encoding="ascii", errors="replace") as file:
            for step in range(self.steps):
                lines = list(islice(file, self._batch_size))
                if step % trainers == rank:
                    yield parse(lines, step * self._batch_size + 1, self._path)

    def held_out(self) -> Clicks:
        """The clicks at the end of the file.

        Raises:
            CriteoError: A line is not in the format.
        """
        with self._path.open(encoding="ascii", errors="replace") as file:
            return parse(list(islice(file, self._train, None)), self._train + 1, self._path)


def parse(lines: Sequence[str], first: int = 1, path: Path = Path("clicks")) -> Clicks:
    """Clicks from lines of text.

    Args:
        lines: The lines, with or without line breaks.
        first: The number of the first one, for errors.
        path: The file, for errors.

    Raises:
        CriteoError: A line is not in the format.
    """
    rows = []
    for number, line in enumerate(lines, first):
        text = line.rstrip("\r\n")
        if not _LINE.fullmatch(text):
            raise CriteoError(
                f"{path}, line {number}: not a label, {COUNTS} integers and {CATEGORIES} values of eight hexadecimal "
                f"digits, with tabs between them: {text[:80]!r}"
            )
        rows.append(text.split("\t"))
    labels = [int(row[0]) for row in rows]
    counts = [[int(field or 0) for field in row[1 : 1 + COUNTS]] for row in rows]
    values = [[int(field, 16) if field else -1 for field in row[1 + COUNTS :]] for row in rows]
    return make_clicks(
        np.array(labels, np.int64),
        np.array(counts, np.int64).reshape(-1, COUNTS),
        np.array(values, np.int64).reshape(-1, CATEGORIES),
    )


def _count_lines(path: Path) -> int:
    with path.open("rb") as file:
        lines, last = 0, b"\n"
        while chunk := file.read(_CHUNK_BYTES):
            lines += chunk.count(b"\n")
            last = chunk[-1:]
        return lines + (last != b"\n")
