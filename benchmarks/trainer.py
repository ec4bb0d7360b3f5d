"""The loop of a measured process, which handles commands of the harness, one JSON object per line."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch

from benchmarks.rows import Row, row_named
from benchmarks.sizes import Sizes
from benchmarks.work import Mismatch, Work


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration of a trainer, its first message.

    Attributes:
        sizes: The dimensions of the work.
        rank: Rank of the trainer.
        trainers: Number of trainers.
        owners: The owners: addresses, or names in a group of torch.distributed.rpc.
        tcp: Whether to use TCP only.
        store: File for the rendezvous of torch.distributed.rpc.
        certificates: Folder of the certificates with which owners are reached over TLS; empty for none.
    """

    sizes: Sizes
    rank: int = 0
    trainers: int = 1
    owners: tuple[str, ...] = ()
    tcp: bool = False
    store: str = ""
    certificates: str = ""

    @classmethod
    def read(cls, message: dict[str, Any]) -> Self:
        """The configuration in a message."""
        sizes = Sizes(**message.pop("sizes"))
        return cls(sizes=sizes, **{**message, "owners": tuple(message.get("owners", ()))})


class Side(Protocol):
    """One side's implementation of the work."""

    def work(self, row: Row) -> AbstractContextManager[Work]:
        """The work of a row, for a block."""


class Wire:
    """Standard input and output as lines of JSON. Whatever else is printed goes to standard error."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        # Not `for line in sys.stdin`, which reads ahead.
        while line := sys.stdin.readline():
            yield json.loads(line)

    def put(self, **message: Any) -> None:
        """Sends a message."""
        self.say(json.dumps(message))

    def say(self, line: str) -> None:
        """Sends a line of text."""
        self._out.write(line + "\n")


def serve(wire: Wire, side: Side) -> None:
    """Handles commands of the harness, until it closes the pipe."""
    works: dict[str, Work] = {}
    with ExitStack() as stack:
        wire.put(ready=True)
        for message in wire:
            name = message.get("row", "")
            try:
                match message["do"]:
                    case "prepare":
                        works[name] = stack.enter_context(side.work(row_named(name)))
                        wire.put(ready=True)
                    case "turn":
                        wire.put(**_turn(works[name], message["count"], message["seconds"]))
                    case "result":
                        torch.save(works[name].result(), message["path"])
                        wire.put(saved=True)
                    case "finish":
                        works.clear()
                        stack.close()
                        wire.put(finished=True)
            except Mismatch as error:
                wire.put(error=f"wrong result: {error}")
            except Exception as error:
                # The harness shows the message in the table; the log has the traceback.
                sys.excepthook(type(error), error, error.__traceback__)
                wire.put(error=f"{type(error).__name__}: {error}")


def _turn(work: Work, count: int, seconds: float) -> dict[str, Any]:
    # The monotonic clock is the same in all processes of a machine, so turns of several trainers can be combined.
    began = time.monotonic()
    done, taken = count, work.turn(count)
    while taken < seconds:
        taken += work.turn(count)
        done += count
    return {"count": done, "seconds": taken, "began": began, "ended": time.monotonic()}
