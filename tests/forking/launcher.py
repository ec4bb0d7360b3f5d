"""Stands in tests for `python`: it has the program forked, and then behaves as if it were the program.

python -IS launcher.py ARGUMENTS

The process that starts it sees a process that takes signals and ends, as with `python ARGUMENTS`. Forked are modules,
the processes of `multiprocessing`, and those in which pytest-xdist runs tests. A real interpreter runs everything else.

It imports what is built in only: `signal`, `socket` and `json` take longer than all else that it does.
"""

from __future__ import annotations

import _signal
import _socket
import marshal
import os
import sys

REAL = ("benchmarks.leash",)
"""Modules that a real interpreter runs, because they ask for the process that has started them."""

BEGINNINGS = ("from multiprocessing.spawn import ", "import sys;exec(eval(sys.stdin.readline()))")
"""With these begin the programs of processes of `multiprocessing`, and of those in which pytest-xdist runs tests."""

FORWARDED = (_signal.SIGINT, _signal.SIGTERM)


def program(arguments: list[str]) -> list[str]:
    """The arguments from the first that counts, if a forked process can run the program; otherwise nothing."""
    for number, argument in enumerate(arguments[:-1]):
        if argument == "-m":
            return arguments[number:] if arguments[number + 1] not in REAL else []
        if argument == "-c":
            return arguments[number:] if arguments[number + 1].startswith(BEGINNINGS) else []
        if argument not in ("-B", "-u"):
            return []
    return []


def descriptors() -> list[int]:
    """All that were inherited."""
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            os.fstat(number)
        except OSError:  # the directory itself, which is closed by now
            continue
        found.append(number)
    return found


def main() -> None:
    """Has the program forked, and ends as it does."""
    python = os.environ["FORKING_PYTHON"]
    arguments = program(sys.argv[1:])
    if not arguments:
        os.execv(python, [python, *sys.argv[1:]])
    inherited = descriptors()
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    server.connect(os.environ["FORKING_ADDRESS"])
    request = {
        "program": arguments,
        "cwd": os.getcwd(),
        "environment": dict(os.environ),
        "descriptors": inherited,
        "launcher": os.getpid(),
        "network": os.readlink("/proc/self/ns/net"),
    }
    rights = b"".join(number.to_bytes(4, sys.byteorder) for number in inherited)
    server.sendmsg([marshal.dumps(request)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    # Not before: what comes first is the request. A signal ends this process until then, and the program with it.
    for number in FORWARDED:
        _signal.signal(number, lambda number, _: server.send(number.to_bytes(4, "little")))
    # So that the other ends of pipes notice the end of the program.
    for number in inherited:
        os.close(number)
    report = server.recv(4)
    code = int.from_bytes(report, "little", signed=True) if report else 1
    if code < 0:
        if -code != _signal.SIGKILL:
            _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
