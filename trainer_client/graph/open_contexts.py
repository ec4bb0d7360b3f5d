"""Knows which contexts of a client are open.

Owners hear only of the contexts that come to them. So the end of one says which others are over, and an owner knows for
any number of passes whether it is too late for a request or whether this is the first of its pass.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final
from weakref import ReferenceType, ref

if TYPE_CHECKING:
    from trainer_client.contexts.context import Context

_MOST_TOLD: Final = 64


class Openings:
    """Numbers contexts, and knows which of them may still be used. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        self._unsaid = 0
        # One that is not kept by anybody cannot be used any more, even if it was never ended.
        self._open: dict[int, ReferenceType[Context]] = {}

    def number(self) -> int:
        """The number of a new one: one, two, three ..."""
        with self._lock:
            self._last += 1
            return self._last

    def opened(self, context: Context) -> None:
        """It may be used from now on."""
        number = context.id.number
        self._open[number] = ref(context, lambda _: self._open.pop(number, None))

    def ended(self, context: Context) -> tuple[int, list[int]]:
        """It may not be used any more.

        Returns:
            A number, and others below: all contexts with lower numbers are over, but for those. Zero and nothing where
            that would be long and was said not long ago.
        """
        with self._lock:
            self._open.pop(context.id.number, None)
            # The garbage collector may take one out meanwhile; a copy of the numbers is made in one go.
            still = list(self._open)
            self._unsaid += 1
            if len(still) > _MOST_TOLD and self._unsaid < len(still):
                return 0, []
            self._unsaid = 0
            return self._last + 1, sorted(still)
