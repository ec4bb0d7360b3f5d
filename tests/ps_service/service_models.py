"""Classes for tests of an owner alone."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import torch
from torch import nn

from ps_service import RRef, hosted, remote

KINDS: dict[str, type[BaseException]] = {
    kind.__name__: kind
    for kind in (
        ValueError,
        KeyError,
        StopIteration,
        TimeoutError,
        OSError,
        SystemExit,
        KeyboardInterrupt,
        GeneratorExit,
        asyncio.CancelledError,
    )
}
"""What a `Raiser` can raise."""


@hosted
class Raiser:
    """Raises whatever it is told to."""

    @remote
    def fail(self, kind: str) -> None:
        raise KINDS[kind]("on purpose")

    @remote
    def fail_at_length(self, length: int) -> None:
        raise ValueError("begin" + "x" * length + "end")

    @remote
    def fail_speechless(self) -> None:
        raise Unspeakable

    @remote
    def fail_inside(self) -> None:
        try:
            {}["missing"]
        except KeyError as error:
            raise ValueError("could not find it") from error


class Unspeakable(Exception):
    """Fails when it is asked what is wrong."""

    def __str__(self) -> str:
        raise ZeroDivisionError


@hosted
class Latch:
    """Blocks a call until the test opens it; the test shares the process with the owner."""

    def __init__(self) -> None:
        self.begun, self.opened, self.ended = threading.Event(), threading.Event(), threading.Event()

    @remote
    def wait(self) -> str:
        self.begun.set()
        try:
            if not self.opened.wait(20):
                raise RuntimeError("it was not opened in time")
            return "through"
        finally:
            self.ended.set()

    @remote
    def wait_and_keep(self) -> RRef:
        self.wait()
        return RRef(torch.ones(3))


@hosted
class Wide(nn.Module):
    """Returns more than it gets."""

    def forward(self, x: torch.Tensor, times: int) -> torch.Tensor:
        return x.repeat(times)

    @remote
    def unsendable(self) -> Any:
        return object()
