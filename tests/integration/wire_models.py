"""Classes that the owners of the integration tests host, beside those in `tests.hosted_models`."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from ps_service import RRef, hosted, remote


@hosted
class PipeReader:
    """Blocks its callers until a process writes to a named pipe, also while the owner drains."""

    def __init__(self, pipe: str) -> None:
        self.pipe = Path(pipe)

    @remote
    def wait(self) -> str:
        return self.pipe.read_text()


@hosted
class SlowToMake:
    """Its constructor holds until the test, which is in the same process, lets it go on."""

    entered = threading.Semaphore(0)
    go_on = threading.Semaphore(0)

    def __init__(self, value: torch.Tensor | None = None) -> None:
        SlowToMake.entered.release()
        SlowToMake.go_on.acquire()
        self.value = value

    @remote
    def total(self) -> float:
        return 0.0 if self.value is None else float(self.value.sum())


@hosted
class Loud:
    """Answers with as many bytes as it is asked for."""

    @remote
    def shout(self, count: int) -> bytes:
        return bytes(count)

    @remote
    def zeros(self, count: int) -> torch.Tensor:
        return torch.zeros(count)


@hosted
class Shelf:
    """Keeps what it is given, and looks at handles wherever they stand in its arguments."""

    def __init__(self, *things: Any, **named: Any) -> None:
        self.things = (*things, *named.values())

    @remote
    def look(self, arguments: Any) -> Any:
        if isinstance(arguments, RRef):
            return arguments.local_value().value
        if isinstance(arguments, (list, tuple)):
            return type(arguments)(map(self.look, arguments))
        if isinstance(arguments, dict):
            return {key: self.look(value) for key, value in arguments.items()}
        return arguments

    @remote
    def count(self) -> int:
        return len(self.things)

    @remote
    def norm(self, parameter: RRef) -> float:
        return float(parameter.local_value().detach().norm())

    @remote
    def new_layer(self, size: int) -> RRef:
        """A module made on the owner, which its caller gets a handle of."""
        return RRef(nn.Linear(size, size))

    @remote
    def layers(self) -> dict[str, Any]:
        """Handles inside containers."""
        return {"all": [RRef(nn.Linear(1, 1)), (RRef(nn.Linear(2, 2)),)]}

    def __call__(self) -> None:
        """Not marked, like every method of this name."""


@hosted
class Moody(nn.Module):
    """A module whose forward fails on demand, and whose answers do not fit on demand."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor, mood: str = "") -> Any:
        if mood == "raise":
            raise KeyError("no such mood")
        if mood == "object":
            return object()
        return x * self.weight


@hosted
class Diary:
    """Notes in which order it was called; tests use it where calls run in threads."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    @remote
    def note(self, text: str) -> None:
        self.notes.append(text)

    @remote
    def read(self) -> list[str]:
        return self.notes


@hosted
class MadeOnce:
    """Its constructor does what the test has written down for it, in the same process."""

    outcomes: ClassVar[list[str]] = []

    def __init__(self) -> None:
        if MadeOnce.outcomes.pop(0) == "fails":
            raise RuntimeError("could not be made")
