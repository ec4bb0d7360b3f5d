"""Says for whom a process waits, while it waits for other members of a group."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from ps_wire.errors import DeadlineExceededError, PsError
from trainer_client.session.in_flight import InFlightRequest

if TYPE_CHECKING:
    from trainer_client.pending import Pending

_log = logging.getLogger(__name__)

_FIRST_SECONDS: Final = 1.5
"""Seconds before the first warning."""

_LONGEST_SECONDS: Final = 30.0
"""The longest pause between two warnings; each is twice as long as the one before."""

LOOK_SECONDS: Final = 1.0
"""Seconds after which the directory is asked again who is missing."""

DAY: Final = 86_400.0
"""The longest wait, where there is no limit, in seconds."""


class Deadline:
    """A deadline, in seconds from now; 0 for none."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds if seconds else None

    def left(self) -> float:
        """The seconds that are left."""
        return DAY if self._at is None else max(self._at - time.monotonic(), 0.001)

    @property
    def over(self) -> bool:
        """Whether it has passed."""
        return self._at is not None and self._at <= time.monotonic()

    def __str__(self) -> str:
        return "without a time limit" if self._at is None else f"for up to {self.left():.0f} s more"


def unanswered(calls: Iterable[Pending[Any]]) -> str:
    """Says which members have not answered some calls of this process."""
    owners = sorted({each.session.owner for each in calls if isinstance(each, InFlightRequest) and not each.done()})
    return f"calls of this process are not answered in time by {', '.join(owners) or 'other members'}"


@asynccontextmanager
async def in_time(seconds: float, what: Callable[[], str]) -> AsyncIterator[None]:
    """A block that may take so many seconds. `what` returns the text of its `DeadlineExceededError`."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        if isinstance(error, PsError):
            raise  # it is not the end of this time
        raise DeadlineExceededError(what()) from None


@asynccontextmanager
async def told(what: Callable[[], str], deadline: object) -> AsyncIterator[None]:
    """A block that may wait for long. While it does, warnings in the log say for what, the first within two seconds.
    `what` returns who waits, and for what; the text of the deadline tells when the wait will be given up."""
    task = asyncio.create_task(_tell(what, deadline))
    try:
        yield
    finally:
        task.cancel()


async def _tell(what: Callable[[], str], deadline: object) -> None:
    began, pause = time.monotonic(), _FIRST_SECONDS
    while True:
        await asyncio.sleep(pause)
        _log.warning("%s; it has waited for %.0f s, and waits %s", what(), time.monotonic() - began, deadline)
        pause = min(2 * pause, _LONGEST_SECONDS)
