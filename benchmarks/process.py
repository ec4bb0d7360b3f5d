"""Child processes that exchange lines, can be paused, and never outlive their parent."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

ROOT: Final = Path(__file__).resolve().parents[1]


class ChildFailed(RuntimeError):
    """A child process ended, or did not answer in time."""


class Child:
    """A running process, in a session of its own, so that Ctrl-C in a terminal reaches only its parent.

    Args:
        name: Name in messages, and of its log.
        command: The program.
        log: The file for its standard error.
        env: Its environment.
        listens: Whether it reads its standard input and ends when that is closed; otherwise it gets SIGTERM.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str], listens: bool) -> None:
        self.name = name
        self._log = log
        self._listens = listens
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        leash = [sys.executable, "-m", "benchmarks.leash", str(os.getpid())]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*leash, *command],
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                bufsize=1,
                start_new_session=True,
            )
        # A thread reads, so that waiting can time out, and a full pipe never blocks the child.
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its PID."""
        return self._process.pid

    def send(self, **message: Any) -> None:
        """Writes a line of JSON to its standard input.

        Raises:
            ChildFailed: It no longer reads.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self.failed("does not read any more") from None

    def line(self, timeout: float) -> str:
        """The next line it prints.

        Raises:
            ChildFailed: It ended, or printed none in time.
        """
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise self.failed(f"gave no answer within {timeout:g} s") from None
        if line is None:
            self._lines.put(None)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
            raise self.failed(f"ended with code {self._process.returncode}")
        return line

    def receive(self, timeout: float) -> dict[str, Any]:
        """The next line of JSON it prints.

        Raises:
            ChildFailed: It ended, or printed none in time.
        """
        message: dict[str, Any] = json.loads(self.line(timeout))
        return message

    def failed(self, what: str) -> ChildFailed:
        """An error with a message and the end of the child's log."""
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-3:])
        return ChildFailed(f"{self.name} {what}" + (f": {tail}" if tail else ""))

    def pause(self) -> None:
        """Stops the process until `resume`, so that it takes no time from others."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets the process continue."""
        self._signal(signal.SIGCONT)

    def ask_to_end(self) -> None:
        """Closes its standard input, or sends SIGTERM if it does not read that."""
        self.resume()
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        if not self._listens:
            self._signal(signal.SIGTERM)

    def end(self, until: float) -> None:
        """Waits for its end until a time of the monotonic clock, and then kills it."""
        try:
            self._process.wait(max(until - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()
        self._reader.join(1)
        if not self._reader.is_alive():
            assert self._process.stdout is not None
            self._process.stdout.close()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _read(self, stdout: IO[str]) -> None:
        with suppress(ValueError):
            for line in stdout:
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)


class Children:
    """Starts children. The end of its block ends those that still run.

    Args:
        logs: Folder of their logs.
        torch_threads: Threads that torch uses inside one operation, in each of them.
    """

    def __init__(self, logs: Path, torch_threads: int) -> None:
        self._logs = logs
        self._torch_threads = torch_threads
        self._running: list[Child] = []

    def start(
        self, name: str, module: str, *arguments: str, listens: bool = True, python: str = "", all_cores: bool = False
    ) -> Child:
        """Starts a module as a child, by default with this interpreter. Its standard error is added to `NAME.log`.

        With `all_cores`, torch uses a thread per core in it.
        """
        self._logs.mkdir(parents=True, exist_ok=True)
        command = [python or sys.executable, "-m", module, *arguments]
        env = environment((os.cpu_count() or 1) if all_cores else self._torch_threads)
        child = Child(name, command, self._logs / f"{name}.log", env, listens)
        self._running.append(child)
        return child

    def end(self, children: Sequence[Child], grace_seconds: float = 5.0) -> None:
        """Asks all of them to end, kills those that do not, and waits for them."""
        for child in children:
            child.ask_to_end()
        until = time.monotonic() + grace_seconds
        for child in children:
            child.end(until)
            self._running.remove(child)

    def __enter__(self) -> Self:
        # Logs of an earlier run would be read as those of this one.
        for log in self._logs.glob("*.log"):
            log.unlink()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After Ctrl-C the shutdown must be quick.
        self.end(list(self._running), grace_seconds=5.0 if kind is None else 0.5)


def environment(torch_threads: int) -> dict[str, str]:
    """The environment of every child of every side, which is the same, without tuning for one of them."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "OMP_", "GLIBC_"))}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    threads = str(torch_threads)
    return kept | {
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        # TensorPipe's TCP listens on loopback, as our owner does.
        "TP_SOCKET_IFNAME": "lo",
        "GLOO_SOCKET_IFNAME": "lo",
    }
