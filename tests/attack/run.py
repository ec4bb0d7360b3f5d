"""Runs attacks, each on an owner of its own."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.attack.attack import Attack, Broken, Skipped
from tests.attack.scene import scene

SECONDS = 30.0
"""Within which each attack is over."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an attack.

    Attributes:
        attack: The attack.
        tried: How often something was tried.
        seconds: How long it took.
        broken: What did not hold; empty if all held.
        skipped: Why it could not be tried; empty if it was.
    """

    attack: Attack
    tried: int
    seconds: float
    broken: str = ""
    skipped: str = ""

    @property
    def words(self) -> str:
        """The outcome in words."""
        if self.skipped:
            return f"not tried: {self.skipped}"
        return f"DOES NOT HOLD: {self.broken}" if self.broken else "holds"


async def tried(attack: Attack) -> Outcome:
    """Runs an attack."""
    began = time.monotonic()
    broken = skipped = ""
    count = 0
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        try:
            async with asyncio.timeout(SECONDS), scene(Path(folder), attack.tls) as at:
                try:
                    await attack.run(at)
                finally:
                    count = at.tried
        except Skipped as error:
            skipped = str(error)
        except Broken as error:
            broken = str(error)
        except TimeoutError:
            broken = f"it was not over after {SECONDS:.0f} s"
        except Exception as error:
            broken = f"the attack ended with {error!r}"
    return Outcome(attack, count, time.monotonic() - began, broken, skipped)


async def outcomes(attacks: Iterable[Attack]) -> AsyncIterator[Outcome]:
    """Runs attacks one after another."""
    for each in attacks:
        yield await tried(each)
