"""Whom an open round waits for, for messages to people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ps_wire.errors import RAN_OUT

if TYPE_CHECKING:
    from collections.abc import Callable

    from ps_service.policies.rounds import Rounds

_MORE: Final = "more trainers to join"


def missing(rounds: Rounds, describe: Callable[[bytes], str], most: int) -> list[str]:
    """Whom an open round waits for: at most so many trainers, or others that have not come yet.

    Args:
        rounds: The rounds.
        describe: A trainer for messages.
        most: The most trainers to name.
    """
    late = [describe(each) for each in rounds.waiting_for()[:most]]
    return late or ([_MORE] if rounds.waiting_offers() else [])


def ran_out(title: str, seconds: float, rounds: Rounds, describe: Callable[[bytes], str]) -> str:
    """The error of a step that has waited in vain.

    Args:
        title: What it has waited in.
        seconds: For how long.
        rounds: The rounds.
        describe: A trainer for messages.
    """
    late = ", ".join(describe(each) for each in rounds.waiting_for())
    if late:
        whom = f"trainer {late}"
    else:
        there = [describe(each) for each in rounds.members]
        whom = f"{_MORE}; there {'is' if len(there) == 1 else 'are'} only {', '.join(there)}"
    return f"{RAN_OUT}: {title} has waited {seconds:g} s for {whom}"
