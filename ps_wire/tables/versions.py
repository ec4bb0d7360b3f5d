"""Versions of the rows of a table on one owner."""

from __future__ import annotations

from typing import NamedTuple


class RowsVersion(NamedTuple):
    """Which changes of rows have been made. Within an epoch, a larger number means later; different epochs cannot be
    compared: each process of an owner begins one, and so does each move of rows from or to it."""

    epoch: int
    number: int
