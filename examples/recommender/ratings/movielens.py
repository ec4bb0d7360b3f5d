"""Reads ratings in the formats of MovieLens.

A line has a user, an item, a rating and a time in seconds, with `::` (1M, 10M), commas (20M and later, after a line
of names) or tabs (100K) between them.
"""

from __future__ import annotations

import re
from array import array
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

_NUMBER: Final = r"(-?\d{1,18})"
_LINE: Final = re.compile(rf"{_NUMBER}(::|,|\t){_NUMBER}\2-?\d{{1,9}}(?:\.\d*)?\2{_NUMBER}")
_NAMES: Final = re.compile(r"[A-Za-z_]+(,[A-Za-z_]+){3}")


class RatingsError(ValueError):
    """A file has no ratings to train on; the message names the line."""


class Ratings(NamedTuple):
    """Which user has rated which item, and when. What the rating was does not count (implicit feedback).

    Attributes:
        users: Ids of users as in the file, [n].
        items: Ids of items as in the file, [n].
        times: Seconds, [n].
    """

    users: Integers
    items: Integers
    times: Integers


def read(path: Path) -> Ratings:
    """The ratings of a file.

    Raises:
        RatingsError: A line is not in one of the formats, or there is none.
        OSError: The file cannot be read.
    """
    users, items, times = array("q"), array("q"), array("q")
    with path.open(encoding="ascii", errors="replace") as file:
        for number, line in enumerate(file, 1):
            text = line.rstrip("\r\n")
            found = _LINE.fullmatch(text)
            if found is None:
                if number == 1 and _NAMES.fullmatch(text):
                    continue
                raise RatingsError(
                    f"{path}, line {number}: not a user, an item, a rating and a time with '::', commas or tabs "
                    f"between them: {text[:80]!r}"
                )
            users.append(int(found[1]))
            items.append(int(found[3]))
            times.append(int(found[4]))
    if not users:
        raise RatingsError(f"{path} has no ratings")
    return Ratings(*(np.array(each, np.int64) for each in (users, items, times)))
