"""Forked processes, as their parent's side sees them: what `subprocess` has, as far as tests use it."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import IO, Final, Self

from tests.forking.server import Request

ROOT: Final = Path(__file__).parent.parent.parent


def environment() -> dict[str, str]:
    """That of this process, for a program that is to compute in one thread, and that compiles only what it uses."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PS_COMPILE_TABLES": "no"}


class Forked:
    """A process, with pipes for its standard input and output; leaving its context ends it.

    Args:
        pid: Its number.
        report: The pipe in which its exit code will stand.
        stdin, stdout: The other ends of its own.

    Attributes:
        returncode: Its exit code, negative for a signal, once the process has been waited for.
    """

    def __init__(self, pid: int, report: int, stdin: IO[str], stdout: IO[str]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._report = report

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()
        self.stdin.close()
        self.stdout.close()

    def poll(self) -> int | None:
        """The exit code if it has ended."""
        if self.returncode is None and select.select([self._report], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits until it has ended, in seconds; raises TimeoutError."""
        if self.returncode is None:
            if not select.select([self._report], [], [], timeout)[0]:
                raise TimeoutError(f"process {self.pid} has not ended within {timeout} s")
            self.returncode = _number(self._report)
            os.close(self._report)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> str:
        """Closes its input, reads its output, and waits until it has ended."""
        self.stdin.close()
        output = self.stdout.read()
        self.wait(timeout)
        return output

    def send_signal(self, number: int) -> None:
        """Nothing happens to a process that has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class AsyncForked:
    """The same for an event loop: its output, and its errors if they are asked for, are streams.

    Args:
        pid: Its number.
        report: The pipe in which its exit code will stand.
    """

    def __init__(self, pid: int, report: int) -> None:
        self.pid = pid
        self.stdout = asyncio.StreamReader()
        self.stderr = asyncio.StreamReader()
        self._transports: list[asyncio.ReadTransport] = []
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._loop.add_reader(report, self._has_ended)

    async def read(self, pipe: int, stream: asyncio.StreamReader) -> None:
        """Has what comes out of a pipe fed to a stream."""
        transport, _ = await self._loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(pipe, "rb", 0)
        )
        self._transports.append(transport)

    def _has_ended(self) -> None:
        self._loop.remove_reader(self._report)
        self._ended.set_result(_number(self._report))
        os.close(self._report)

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative for a signal, once the loop has heard of it."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        """Waits until it has ended."""
        return await asyncio.shield(self._ended)

    async def communicate(self) -> tuple[bytes, bytes]:
        """What it still writes until it ends."""
        out, error = await asyncio.gather(self.stdout.read(), self.stderr.read())
        await self.wait()
        return out, error

    async def aclose(self) -> None:
        """Ends it, and closes the pipes."""
        self.kill()
        await self.wait()
        for transport in self._transports:
            transport.close()
        await asyncio.sleep(0)

    def send_signal(self, number: int) -> None:
        """Nothing happens to a process that has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forking:
    """Starts processes by forking them from a server, which it starts first. Close it at the end.

    Args:
        within: The `variables` of another one whose server is forked to make this one's: nothing is imported again.
        more: Packages whose programs will be run, so that the server imports at once what they need.

    Attributes:
        python: A program that stands for the interpreter: what it runs is forked. It needs `variables`.
        variables: What `python` needs in its environment. What a forked program starts with `sys.executable` is then
            forked, too.
    """

    def __init__(self, within: Mapping[str, str] | None = None, more: Sequence[str] = ()) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="forking-")
        self.python = str(Path(self._folder.name, "python"))
        address = str(Path(self._folder.name, "socket"))
        self.variables = {
            "FORKING_PYTHON": sys.executable,
            "FORKING_LAUNCHER": self.python,
            "FORKING_ADDRESS": address,
        }
        launcher = Path(__file__).with_name("launcher.py")
        Path(self.python).write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{launcher}" "$@"\n')
        Path(self.python).chmod(0o700)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(address)
            listener.listen()
            passed = [theirs.fileno(), listener.fileno()]
            python = within["FORKING_LAUNCHER"] if within else sys.executable
            self._server = subprocess.Popen(
                [python, "-m", "tests.forking.server", *map(str, passed), *more],
                cwd=ROOT, env=environment() | dict(within or {}), pass_fds=passed,
            )  # fmt: skip
        theirs.close()

    def close(self) -> None:
        """Ends the server, and all it has forked."""
        self._control.shutdown(socket.SHUT_WR)
        assert self._server.wait() == 0
        self._control.close()
        self._folder.cleanup()

    @cached_property
    def _pid(self) -> int:
        """The number of the server, which is not that of its launcher."""
        return int(self._control.recv(16))

    def children(self) -> set[int]:
        """The numbers of the processes that it has forked and that have not ended."""
        pid = self._pid
        return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))

    def start(self, module: str, *arguments: str) -> Forked:
        """Starts `python -m module *arguments` in the repository's root; its errors go where those of the tests go."""
        their_input, stdin = os.pipe()
        stdout, their_output = os.pipe()
        pid, report = self._fork(their_input, their_output, 2, _request(module, arguments))
        os.close(their_input)
        os.close(their_output)
        return Forked(pid, report, os.fdopen(stdin, "w"), os.fdopen(stdout))

    async def begin(
        self,
        module: str,
        *arguments: str,
        errors: bool = False,
        cwd: Path = ROOT,
        variables: Mapping[str, str] | None = None,
    ) -> AsyncForked:
        """The same for an event loop, which stands still for as long as a fork takes; its input is empty.

        Args:
            errors: Whether its errors are a stream, too.
            cwd: Its working directory.
            variables: Its environment, if that is not the one of this process.
        """
        stdout, their_output = os.pipe()
        stderr, their_errors = os.pipe() if errors else (-1, 2)
        empty = os.open(os.devnull, os.O_RDONLY)
        pid, report = self._fork(empty, their_output, their_errors, _request(module, arguments, cwd, variables))
        os.close(empty)
        process = AsyncForked(pid, report)
        os.close(their_output)
        await process.read(stdout, process.stdout)
        if errors:
            os.close(their_errors)
            await process.read(stderr, process.stderr)
        return process

    def _fork(self, stdin: int, stdout: int, stderr: int, request: Request) -> tuple[int, int]:
        report, their_report = os.pipe()
        socket.send_fds(self._control, [json.dumps(request).encode()], [stdin, stdout, stderr, their_report])
        os.close(their_report)
        return _number(report), report


def _request(
    module: str, arguments: tuple[str, ...], cwd: Path = ROOT, variables: Mapping[str, str] | None = None
) -> Request:
    found = dict(environment() if variables is None else variables)
    return Request(program=["-m", module, *arguments], cwd=str(cwd), environment=found, descriptors=[0, 1, 2])


def _number(report: int) -> int:
    found = os.read(report, 4)
    assert len(found) == 4, "the server of forked processes has died"
    return int.from_bytes(found, "little", signed=True)
