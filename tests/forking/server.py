"""The process that forks: it imports what is slow once, and becomes a program in a child of its own for each request.

python -m tests.forking.server CONTROL LISTENER PACKAGE...

The first two arguments are descriptors of sockets; what programs of the packages need is imported at once. The first
packet at CONTROL is the number of this process. A server may itself be forked by another one. Requests are packets,
`Request`, with the descriptors of the child.

- Those that arrive at CONTROL are JSON. They have one descriptor more: a pipe in which this process writes the number
  of the child, and its exit code once it has ended. When CONTROL is closed, this process ends, and the children do.
- Those that arrive at a connection to LISTENER come from a `launcher`, which has `marshal` built in. Its packets that
  follow are numbers of signals for the child, and the answer is the exit code. When the connection is closed, the child
  is killed.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import marshal
import multiprocessing
import os
import runpy
import select
import signal
import socket
import sys
import threading
import weakref
from contextlib import suppress
from typing import Final, NoReturn, NotRequired, TypedDict

SLOW: Final = (
    *("torch._dynamo", "uvloop"),
    *("ps_service.cli.commands", "ps_service.cli.engines", "ps_service.cli.logs", "ps_service.cli.serving"),
    *("trainer_client.rpc", "trainer_client.optim", "trainer_client.tables", "trainer_client.client.blocking"),
    *("tests.hosted_models", "tests.rpc.situations"),
)
"""What the programs import anyway, owners with an optimizer torch's compiler too."""

MORE: Final = {
    "examples": ("sklearn.datasets", "matplotlib.pyplot", "rich.progress", "numba"),
    "benchmarks": (
        *("torch.distributed.rpc", "torch.distributed.optim"),
        *("matplotlib.pyplot", "rich.progress", "numba"),
    ),
}
"""What programs of these packages import besides; it is imported when the first of them is to run."""

MAX_REQUEST: Final = 1 << 17
MAX_DESCRIPTORS: Final = 32

_APART: Final = 500
"""Descriptors are moved to numbers from here on, before they get the numbers that a child expects."""


class Request(TypedDict):
    """What a child is to run.

    Attributes:
        program: The arguments that an interpreter would have, from `-m` or `-c` on.
        cwd: Its working directory.
        environment: Its environment.
        descriptors: The numbers of its descriptors, in the order in which they were sent.
        launcher: The number of its launcher, if it has one.
        network: The network namespace of that one.
    """

    program: list[str]
    cwd: str
    environment: dict[str, str]
    descriptors: list[int]
    launcher: NotRequired[int]
    network: NotRequired[str]


class Server:
    """Forks until its control socket is closed.

    Args:
        control: Where requests of the tests come from.
        listener: Where launchers connect.
    """

    def __init__(self, control: socket.socket, listener: socket.socket) -> None:
        self._control = control
        self._listener = listener
        self._pipes: dict[int, int] = {}
        self._launchers: dict[socket.socket, int | None] = {}
        self._foreign = {int(number) for number in os.listdir("/proc/self/fd")} - {control.fileno(), listener.fileno()}
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)

    def serve(self) -> Request | None:
        """Returns in each child what that is to run, and in this process None, at the end."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake)
        while True:
            ready, _, _ = select.select([self._control, self._listener, self._woken, *self._launchers], [], [])
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._bury()
            if self._listener in ready:
                self._launchers[self._listener.accept()[0]] = None
            for launcher in self._launchers.keys() & set(ready):
                if request := self._heard(launcher):
                    return request
            if self._control in ready:
                message, descriptors, _, _ = socket.recv_fds(self._control, MAX_REQUEST, MAX_DESCRIPTORS)
                if not message:
                    for child in (*self._pipes, *filter(None, self._launchers.values())):
                        os.kill(child, signal.SIGKILL)
                    return None
                request = json.loads(message)
                report = descriptors.pop()
                if (child := self._fork(request, descriptors)) == 0:
                    return request
                self._pipes[child] = report
                os.write(report, child.to_bytes(4, "little"))

    def _heard(self, launcher: socket.socket) -> Request | None:
        """Takes a packet of a launcher; returns in a new child what that is to run."""
        try:
            message, descriptors, _, _ = socket.recv_fds(launcher, MAX_REQUEST, MAX_DESCRIPTORS)
        except ConnectionError:
            message, descriptors = b"", []
        child = self._launchers[launcher]
        if not message:
            # A child without a launcher is buried like others.
            del self._launchers[launcher]
            launcher.close()
            if child is not None:
                os.kill(child, signal.SIGKILL)
        elif child is not None:
            os.kill(child, int.from_bytes(message, "little"))
        else:
            request: Request = marshal.loads(message)
            if (child := self._fork(request, descriptors)) == 0:
                return request
            self._launchers[launcher] = child
        return None

    def _fork(self, request: Request, descriptors: list[int]) -> int:
        import_more(request["program"][1])
        assert len(os.listdir("/proc/self/task")) == 1, "a fork has no other threads"
        if (child := os.fork()) == 0:
            self._become(request, descriptors)
        else:
            for descriptor in descriptors:
                os.close(descriptor)
        return child

    def _bury(self) -> None:
        while True:
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if child == 0:
                return
            report = os.waitstatus_to_exitcode(status).to_bytes(4, "little", signed=True)
            if pipe := self._pipes.pop(child, None):
                os.write(pipe, report)
                os.close(pipe)
            for launcher in [each for each, its in self._launchers.items() if its == child]:
                del self._launchers[launcher]
                with launcher:
                    try:
                        launcher.send(report)
                    except ConnectionError:
                        continue

    def _become(self, request: Request, descriptors: list[int]) -> None:
        """Makes a child look like a process that has just been started."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _APART) for descriptor in descriptors]
        for launcher in self._launchers:
            launcher.detach()
        self._control.detach()
        self._listener.detach()
        for number in map(int, os.listdir("/proc/self/fd")):
            if number not in self._foreign and number not in moved:
                try:
                    os.close(number)
                except OSError:  # the directory that was listed
                    continue
        for descriptor, number in zip(moved, request["descriptors"], strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
        if "launcher" in request and request["network"] != os.readlink("/proc/self/ns/net"):
            _enter_network_of(request["launcher"])
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environment"])
        if "FORKING_LAUNCHER" in os.environ:
            # What it starts itself is forked, too.
            sys.executable = os.environ["FORKING_LAUNCHER"]
            multiprocessing.set_executable(sys.executable)
        if os.environ.get("PYTHONUNBUFFERED"):
            for stream in (sys.stdout, sys.stderr):
                stream.reconfigure(write_through=True)  # type: ignore[attr-defined]


def _enter_network_of(process: int) -> None:
    """Enters the network namespace of another process."""
    with open(f"/proc/{process}/ns/net") as network:
        if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), 0):
            raise OSError(ctypes.get_errno(), "setns")


def run(program: list[str]) -> None:
    """Runs `python *program` here."""
    kind, what, *arguments = program
    sys.orig_argv[1:] = program
    if kind == "-m":
        sys.argv[1:] = arguments
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = [kind, *arguments]
        exec(what, {"__name__": "__main__"})


def end(program: list[str]) -> NoReturn:
    """Runs a program, and ends as an interpreter does, but takes nothing apart that was imported.

    That would take 0.3 seconds of processor time: it writes to every object, and so copies the memory of the server.
    """
    code: object = None
    try:
        run(program)
    except SystemExit as ended:
        code = ended.code
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit((code or 0) & 0xFF)


def import_more(program: str) -> None:
    """Imports what the programs of a package need."""
    for module in MORE.get(program.partition(".")[0], ()):
        importlib.import_module(module)


def use() -> None:
    """Does what takes long where it is done for the first time."""
    importlib.import_module("ps_wire.numerics.operators").resolve()
    serve = importlib.import_module("ps_service.cli.commands").command().commands["serve"]
    serve.make_context("serve", [], resilient_parsing=True)
    importlib.import_module("ps_service.config").load()
    for level in importlib.import_module("ps_service.functions.groups").Level:
        importlib.import_module("ps_service.functions.listing").listed(level)
    # Its first function takes as long as its import.
    importlib.import_module("numba").njit(lambda: 0)()
    # The loops of tables, unless they would have to be compiled: who needs them first has that done.
    if importlib.import_module("ps_service.tables.compiled").CodeCache().complete:
        importlib.import_module("ps_service.tables.preparing").PREPARATION.ensure()


def keep() -> None:
    """Has what is there now stay as it is in every child: each look at it would copy its pages."""
    gc.collect()
    gc.freeze()
    # Torch has some two hundred, which take its libraries of operators apart.
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]


def main(control: str, listener: str, *packages: str) -> None:
    """Imports, serves, and runs a program where it comes back as a child."""
    # If this server is a forked process, it is one of another server; its own children are not.
    for name in ("FORKING_LAUNCHER", "FORKING_ADDRESS"):
        os.environ.pop(name, None)
    sys.executable = os.environ.pop("FORKING_PYTHON", sys.executable)
    multiprocessing.set_executable(sys.executable)
    for module in SLOW:
        importlib.import_module(module)
    for package in packages:
        import_more(package)
    use()
    keep()
    ours = socket.socket(fileno=int(control))
    ours.send(str(os.getpid()).encode())
    request = Server(ours, socket.socket(fileno=int(listener))).serve()
    if request is not None:
        end(request["program"])


if __name__ == "__main__":
    main(*sys.argv[1:])
