"""The processes of one side, which are started once and paused during the turns of other sides."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.process import Child, ChildFailed, Children
from benchmarks.rows import Row, Shape
from benchmarks.sides import shared_memory
from benchmarks.sizes import Sizes
from ps_service.cli import certs

OURS: Final = "ours"
OURS_TCP: Final = "ours_tcp"
TORCH: Final = "torch_rpc"
TORCH_TCP: Final = "torch_rpc_tcp"
GLOO: Final = "gloo"
BARE: Final = "bare"
LOCAL: Final = "local"
LOCAL_PAUSED: Final = "local_paused"

LOCALS: Final = (LOCAL, LOCAL_PAUSED)
DURABLE_OFF: Final = "durable_off"
DURABLE: Final = {DURABLE_OFF: "off", "durable_interval": "interval:1", "durable_always": "always"}
"""What `--durability` is on the sides of rows that measure it: ours, with other promises."""

TLS: Final = {"over_plain": ("tls_direct", "plain_direct"), "over_plain_grpc": ("tls_grpc", "plain_grpc")}
"""The sides of rows that measure TLS: ours over TCP. The time of the first is divided by that of the second."""

ENCRYPTED: Final = tuple(side for pair in TLS.values() for side in pair)

SIDES: Final = (OURS, GLOO, TORCH, OURS_TCP, TORCH_TCP, BARE, *DURABLE, *ENCRYPTED, *LOCALS)
"""All sides, in the order of their turns; sides that are compared are adjacent."""


def takes_part(side: str, row: Row) -> bool:
    """Whether a side has a turn in the rounds of a row."""
    if row.shape.durable or side in DURABLE:
        return row.shape.durable and (side in DURABLE or side == LOCAL)
    if row.shape.tls or side in ENCRYPTED:
        return row.shape.tls and (side in ENCRYPTED or (side == LOCAL and row.local))
    if row.ours_only:
        return side in (OURS, OURS_TCP)
    if row.large:
        return side in (OURS, LOCAL)
    if side == BARE:
        return row.bare
    if side in LOCALS:
        # The floor of the steady rows is the bare program.
        return row.local and not (row.steps and side == LOCAL_PAUSED)
    return row.gloo == (side == GLOO) if side in (GLOO, TORCH, TORCH_TCP) else True


_START_SECONDS: Final = 120.0
_ANSWER_SECONDS: Final = 180.0

_worlds = itertools.count()


def certificates(scratch: Path) -> Path:
    """The folder of the certificates of the sides with TLS, which are made once."""
    folder = scratch / "certs"
    if not folder.exists():
        certs.make(folder, ["127.0.0.1"], ["trainer"])
    return folder


class Fleet:
    """One side's owners and trainers.

    Args:
        side: One of `SIDES`.
        shape: The number of processes of each kind.
        sizes: The dimensions of the work.
        children: Starts the processes.
        scratch: A folder for files that they share.

    Attributes:
        broken: Whether a process failed, so that it has to be started again.
    """

    def __init__(self, side: str, shape: Shape, sizes: Sizes, children: Children, scratch: Path) -> None:
        self.side = side
        self.shape = shape
        self.broken = False
        self._sizes = sizes
        self._children = children
        self._scratch = scratch
        self._tcp = side in (OURS_TCP, TORCH_TCP, *ENCRYPTED)
        self._owners: list[Child] = []
        self._trainers: list[Child] = []

    def start(self) -> None:
        """Starts every process without waiting, so that all fleets can start at once."""
        self.broken = False
        owners, trainers = range(self.shape.owners), range(self.shape.trainers)
        if self.side in (OURS, OURS_TCP, *DURABLE, *ENCRYPTED):
            self._owners = [self._start_owner(number) for number in owners]
            self._trainers = [self._start("trainer", rank, "benchmarks.sides.ours") for rank in trainers]
        elif self.side == BARE:
            self._owners = [
                self._start("owner", number, "benchmarks.sides.bare_owner", listens=False) for number in owners
            ]
            self._trainers = [self._start("trainer", rank, "benchmarks.sides.bare") for rank in trainers]
        elif self.side == GLOO:
            self._trainers = [self._start("trainer", rank, "benchmarks.sides.gloo") for rank in trainers]
        elif self.side in LOCALS:
            pauses = ["pauses"] if self.side == LOCAL_PAUSED else []
            self._trainers = [self._start("trainer", 0, "benchmarks.sides.local", *pauses)]
        else:
            self._owners = [self._start("owner", number, "benchmarks.sides.torch_rpc", "owner") for number in owners]
            self._trainers = [
                self._start("trainer", rank, "benchmarks.sides.torch_rpc", "trainer") for rank in trainers
            ]

    def wait(self) -> None:
        """Waits until every process is ready, and pauses them.

        Raises:
            ChildFailed: A process is not ready in time.
        """
        listening = self.side in (TORCH, TORCH_TCP)
        if listening:
            owners = [f"owner{number}" for number in range(len(self._owners))]
        else:
            # ps0 is serving on 127.0.0.1:50051
            owners = [owner.line(_START_SECONDS).split()[-1] for owner in self._owners]
        told = {
            "sizes": asdict(self._sizes),
            "trainers": len(self._trainers),
            "owners": owners,
            "tcp": self._tcp,
            "certificates": str(certificates(self._scratch)) if self.side.startswith("tls_") else "",
            # A new file: with the file of an earlier group, torch would wait for its members for ever.
            "store": str(self._scratch / f"store-{next(_worlds)}"),
        }
        told_to = [*(self._owners if listening else ()), *self._trainers]
        for kind in (self._owners if listening else [], self._trainers):
            for rank, child in enumerate(kind):
                child.send(**told, rank=rank)
        for child in told_to:
            child.receive(_START_SECONDS)
        self._pause()

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Lets the processes run during a block."""
        for child in (*self._owners, *self._trainers):
            child.resume()
        try:
            yield
        finally:
            self._pause()

    def ask(self, **message: Any) -> list[dict[str, Any]]:
        """Sends the same message to every trainer at once, and returns their answers.

        Raises:
            ChildFailed: A trainer ended, gave no answer in time, or answered with an error.
        """
        return self.ask_each([message] * len(self._trainers))

    def ask_each(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Sends a message of its own to every trainer, and returns their answers; raises what `ask` raises."""
        if self.broken:
            raise ChildFailed(f"a process of {self.side} failed before")
        try:
            for trainer, message in zip(self._trainers, messages, strict=True):
                trainer.send(**message)
            answers = [trainer.receive(_ANSWER_SECONDS) for trainer in self._trainers]
        except ChildFailed:
            self.broken = True
            raise
        for answer in answers:
            if "error" in answer:
                raise ChildFailed(answer["error"])
        return answers

    @property
    def trainers(self) -> int:
        """Its number of trainers; plain torch has one, whatever the shape."""
        return len(self._trainers)

    def finish(self) -> None:
        """Frees the work of a row. A fleet in which that fails is broken from then on."""
        if self.broken:
            return
        try:
            with self.awake():
                self.ask(do="finish")
        except ChildFailed:
            self.broken = True

    def leave(self) -> list[Child]:
        """Removes and returns every process; the caller ends them."""
        children = [*self._trainers, *self._owners]
        self._trainers, self._owners = [], []
        return children

    def _pause(self) -> None:
        for child in (*self._owners, *self._trainers):
            child.pause()

    def _start_owner(self, number: int) -> Child:
        no_shared_memory = ["--no-shared-memory"] if self._tcp and shared_memory.known_to_owner() else []
        return self._children.start(
            f"{self.side}-owner{number}", "ps_service", "serve", "--name", f"ps{number}", "--listen", "127.0.0.1:0",
            "--import", "benchmarks.models", "--import", "benchmarks.nets", *no_shared_memory,
            *self._durability(number), *self._encryption(), listens=False, all_cores=self.shape.all_cores,
        )  # fmt: skip

    def _durability(self, number: int) -> list[str]:
        if self.side not in DURABLE:
            return []
        folder = self._scratch / f"{self.side}-{number}-{next(_worlds)}"
        return ["--data-dir", str(folder), "--durability", DURABLE[self.side]]

    def _encryption(self) -> list[str]:
        given = ["--direct-port", "off"] if self.side.endswith("_grpc") else []
        if self.side.startswith("tls_"):
            folder = certificates(self._scratch)
            given += ["--tls-cert", str(folder / "owner.pem"), "--tls-key", str(folder / "owner.key")]
            given += ["--tls-client-ca", str(folder / certs.AUTHORITY)]
        return given

    def _start(self, kind: str, rank: int, module: str, *arguments: str, listens: bool = True) -> Child:
        name = f"{self.side}-{kind}{rank}"
        return self._children.start(name, module, *arguments, listens=listens, all_cores=self.shape.all_cores)
