"""Files that are read again when they change."""

from __future__ import annotations

import logging
from typing import Generic, Protocol, TypeVar

from ps_wire.errors import InvalidArgumentError

_log = logging.getLogger(__name__)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Stamp = tuple[int, int, int]
"""Changes when a file does."""


class File(Protocol[T_co]):
    """A file with a content that can be read again."""

    def stamp(self) -> Stamp:
        """Changes when the file does. Raises `InvalidArgumentError` if it cannot be read."""

    def read(self) -> T_co:
        """Its content. Raises `InvalidArgumentError` if it cannot be read, or is not valid."""


class Reread(Generic[T]):
    """The `content` of a file, which has `what`, as of the last look. Raises `InvalidArgumentError` if the file cannot
    be read at first, or is not valid."""

    def __init__(self, file: File[T], what: str) -> None:
        self._file = file
        self._what = what
        self._trouble = ""
        self._stamp = file.stamp()
        self.content = file.read()

    def look(self) -> bool:
        """Reads the file again if it has changed, and returns whether it has. While it cannot be read, or is not valid,
        what it had before stays, and the log says so once."""
        try:
            stamp = self._file.stamp()
            if stamp == self._stamp:
                return False
            content = self._file.read()
        except InvalidArgumentError as error:
            if str(error) != self._trouble:
                _log.warning("the %s that were read before stay: %s", self._what, error)
            self._trouble = str(error)
            return False
        self._stamp, self.content, self._trouble = stamp, content, ""
        return True
