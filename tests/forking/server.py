"""The process that forks: it imports what is slow once, and becomes a program in a child of its own for each request.

python -m tests.forking.server DESCRIPTOR

A request is a packet of JSON, `Request`, with four descriptors: standard input, output and error of the child, and a
pipe in which this process writes the number of the child, and its exit code once it has ended. When the socket is
closed, children that are left are killed.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
from typing import Final, TypedDict

SLOW: Final = ("torch._dynamo", "ps_service.cli", "trainer_client.rpc", "tests.hosted_models", "tests.rpc.situations")
"""What the programs import anyway, owners with an optimizer torch's compiler too."""

MAX_REQUEST: Final = 1 << 17


class Request(TypedDict):
    """What a child is to run, as `python -m module *arguments` would."""

    module: str
    arguments: list[str]
    cwd: str
    environment: dict[str, str]


class Server:
    """Forks until its socket is closed.

    Args:
        control: Where requests come from.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._reports: dict[int, int] = {}
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)

    def serve(self) -> Request | None:
        """Returns in each child what that is to run, and in this process None, at the end."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake)
        while True:
            ready, _, _ = select.select([self._control, self._woken], [], [])
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._bury()
            if self._control in ready:
                message, descriptors, _, _ = socket.recv_fds(self._control, MAX_REQUEST, 4)
                if not message:
                    for child in self._reports:
                        os.kill(child, signal.SIGKILL)
                    return None
                request: Request = json.loads(message)
                if (child := os.fork()) == 0:
                    self._become(request, descriptors)
                    return request
                self._reports[child] = descriptors.pop()
                os.write(self._reports[child], child.to_bytes(4, "little"))
                for descriptor in descriptors:
                    os.close(descriptor)

    def _bury(self) -> None:
        for child, report in list(self._reports.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                del self._reports[child]
                os.write(report, os.waitstatus_to_exitcode(status).to_bytes(4, "little", signed=True))
                os.close(report)

    def _become(self, request: Request, descriptors: list[int]) -> None:
        """Makes a child look like a process that has just been started."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._control.close()
        for number, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, number)
        for descriptor in (*descriptors, *self._reports.values(), self._woken, self._wake):
            os.close(descriptor)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv[1:] = request["arguments"]


def main(descriptor: str) -> None:
    """Imports, serves, and runs a program where it comes back as a child."""
    for module in SLOW:
        importlib.import_module(module)
    assert threading.active_count() == 1, "a fork has no other threads"
    gc.collect()
    # What is there now stays: looking at it would copy its pages into every child.
    gc.freeze()
    request = Server(socket.socket(fileno=int(descriptor))).serve()
    if request is not None:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
