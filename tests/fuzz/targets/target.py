"""What a target of the fuzzer is."""

from __future__ import annotations

import random
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from tests.fuzz.cases import Case, Finding


class Reader(ABC):
    """Something in this process that reads bytes which anybody may have sent or written."""

    name: ClassVar[str]

    @abstractmethod
    def make(self, chance: random.Random) -> Case:
        """A case; its messages are its parts."""

    @abstractmethod
    def read(self, case: Case) -> None:
        """Reads a case. Raises `Finding`."""

    def close(self) -> None:  # noqa: B027  (most have nothing to free)
        """Frees what it holds."""


@contextmanager
def only(*allowed: type[Exception]) -> Iterator[None]:
    """A block that may raise these exceptions; another one is a `Finding`."""
    try:
        yield
    except allowed:
        return
    except Finding:
        raise
    except Exception as error:
        raise Finding(f"{error!r}\n{traceback.format_exc()}") from error
