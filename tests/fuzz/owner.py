"""The owner that is fuzzed, as a process of its own, and what is watched of it."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import psutil

from ps_service.cli import commands
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.owner_pb2_grpc import OwnerStub
from tests.forking.process import Forked, Forking
from tests.fuzz.cases import Finding

PATIENCE: Final = 10.0
"""Seconds within which a valid call is answered, however busy the owner is."""

_FLAGS: Final = (
    *("--name", "ps0", "--listen", "127.0.0.1:0", "--directory", "self", "--import", "tests.fuzz.hosted"),
    *("--max-message-bytes", "4194304", "--max-session-bytes", "8388608", "--max-owner-bytes", "67108864"),
    *("--max-result-bytes", "4194304", "--max-object-bytes", "4194304", "--max-context-bytes", "33554432"),
    *("--max-table-bytes", "536870912", "--lease-seconds", "2", "--max-context-seconds", "5", "--log-format", "text"),
)

_TRACEBACK: Final = "Traceback (most recent call last)"

_EXPECTED: Final = re.compile(
    r" raised .*\[ps_service\.events\]|^During handling of|^The above exception was the|^\S+(Error|Exception)\b"
)
"""What stands before a traceback that belongs into the log: hosted code, or torch, has raised an exception."""


@dataclass(frozen=True)
class Held:
    """What an owner holds: bytes of memory of its own, descriptors, threads, and what its status counts.

    Pages of its files, such as those of the log, are in the page cache and not counted.
    """

    own: int
    descriptors: int
    threads: int
    counted: dict[str, int]


class FuzzedOwner:
    """One owner process. Its standard error goes to a file."""

    def __init__(self, forking: Forking, folder: Path, name: str = "owner", durable: bool = True) -> None:
        self.log = folder / f"{name}.log"
        data = ("--data-dir", str(folder / name)) if durable else ()
        self._process: Forked = forking.start("tests.fuzz.owner", str(self.log), *_FLAGS, *data)
        line = self._process.stdout.readline()
        if " is serving on " not in line:
            raise Finding(f"the owner did not start: {line}{self.log.read_text() if self.log.exists() else ''}")
        self.address = line.split()[-1]
        self.pid = self._process.pid
        self._looked = 0
        self._channel = grpc.insecure_channel(self.address)
        self._stub = OwnerStub(self._channel)

    def check(self) -> None:
        """Raises `Finding` if it has ended, does not answer, or has written a traceback."""
        if self._process.poll() is not None:
            raise Finding(f"the owner has ended with {self._process.returncode}\n{self._tail()}")
        try:
            self.status()
        except grpc.RpcError as error:
            if self._process.poll() is not None:
                raise Finding(f"the owner has ended with {self._process.returncode}\n{self._tail()}") from None
            self._process.send_signal(signal.SIGUSR1)
            time.sleep(0.5)
            raise Finding(f"the owner does not answer: {error}\n{self._tail()}") from None
        with self.log.open() as file:
            file.seek(self._looked)
            new = file.read()
            self._looked = file.tell()
        before = ""
        for line in new.splitlines():
            if line == _TRACEBACK and not _EXPECTED.search(before):
                at = new.index(f"{before}\n{line}")
                raise Finding(f"a traceback in the log of the owner:\n{new[at : at + 6000]}")
            if line and not line.startswith(("Traceback", " ")):
                before = line

    def _tail(self) -> str:
        return self.log.read_text(errors="replace")[-8000:]

    def status(self) -> pb.StatusReply:
        """What it says of itself."""
        found: pb.StatusReply = self._stub.Status(pb.StatusRequest(most=10_000), timeout=PATIENCE)
        return found

    def clean(self, kept: str) -> None:
        """Deletes named objects and optimizers, but for those whose names begin so."""
        metadata, status = (("ps-trainer", "f" * 32),), self.status()
        for each in (*status.objects, *status.optimizers):
            if each.name and not each.name.startswith(kept):
                try:
                    self._stub.Delete(pb.DeleteRequest(name=each.name), timeout=PATIENCE, metadata=metadata)
                except grpc.RpcError as error:
                    if error.code() is not grpc.StatusCode.NOT_FOUND:  # it went with the one before
                        raise Finding(f"{each.name!r} could not be deleted: {error}") from None

    def held(self) -> Held:
        """What it holds now."""
        process, status = psutil.Process(self.pid), self.status()
        names = ("sessions", "contexts", "requests_in_flight", "request_bytes", "waiting_bytes", "context_bytes")
        more = ("paused_sessions", "threads_lost", "communicators_open", "waiting", "objects_hosted")
        counted = {name: getattr(status, name) for name in (*names, *more)}
        memory = process.memory_info()
        return Held(memory.rss - memory.shared, process.num_fds(), process.num_threads(), counted)

    def told(self) -> str:
        """What it says of its trainers and its memory."""
        status = self.status()
        return "\n".join(map(str, (*status.trainers, *status.memory)))

    def close(self) -> None:
        """Ends it."""
        self._channel.close()
        with self._process:
            pass


def main() -> None:
    """Runs the owner: `python -m tests.fuzz.owner LOG FLAG...`."""
    os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    sys.argv[1:] = ["serve", *sys.argv[2:]]
    commands.main()


if __name__ == "__main__":
    main()
