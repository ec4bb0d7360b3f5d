"""The messages of a trainer to its launcher: one JSON object per line on standard output."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Start:
    """The trainer is connected and begins."""

    rank: int
    steps: int
    """Number of steps that it will take."""


@dataclass(frozen=True)
class Step:
    """A step was taken."""

    rank: int
    step: int
    """Counted from 1, per trainer."""
    loss: float


@dataclass(frozen=True)
class Finish:
    """The trainer has taken all of its steps."""

    rank: int
    steps: int
    seconds: float


Message = Start | Step | Finish
_KINDS: dict[str, type[Start] | type[Step] | type[Finish]] = {"start": Start, "step": Step, "finish": Finish}


def encode(message: Message) -> str:
    """Returns the message as one line, without the line break."""
    return json.dumps({"type": type(message).__name__.lower(), **asdict(message)})


def decode(line: str) -> Message:
    """Reads one line.

    Raises:
        ValueError: the line is not a message.
    """
    try:
        fields = json.loads(line)
        return _KINDS[fields.pop("type")](**fields)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"not a message: {line!r}") from error
