"""The link: carries packets between the devices of two network namespaces.

The kernel's netem would do the same, but many kernels are built without it. Both ends use the kernel's TCP.

python -m benchmarks.delays.link SOCKET
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
from contextlib import suppress
from time import monotonic

from benchmarks.delays.line import Line
from benchmarks.trainer import Wire

LARGEST = 65536
"""Bytes of the largest packet."""


def main() -> None:
    """Takes the devices of two hosts over a socket, then carries packets, and handles commands on standard input."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen()
        wire = Wire()
        wire.say("listening")
        devices = dict(_device(listener) for _ in range(2))
    _carry(devices["owner"], devices["trainer"], wire)


def _device(listener: socket.socket) -> tuple[str, int]:
    host, _ = listener.accept()
    with host:
        name, fds, _, _ = socket.recv_fds(host, 64, 1)
    os.set_blocking(fds[0], False)
    return name.decode(), fds[0]


def _carry(owner: int, trainer: int, wire: Wire) -> None:
    other = {owner: trainer, trainer: owner}
    lines = {device: Line(0.0, 0.0) for device in other}
    commands = sys.stdin.fileno()
    while True:
        arrivals = [at for line in lines.values() if (at := line.next_arrival()) is not None]
        timeout = max(0.0, min(arrivals) - monotonic()) if arrivals else None
        readable, _, _ = select.select([*other, commands], [], [], timeout)
        for device in readable:
            if device == commands:
                if not (line := sys.stdin.readline()):
                    return
                message = json.loads(line)
                if "delay" in message:
                    lines = {device: Line(message["delay"], message["rate"]) for device in other}
                wire.put(up=lines[trainer].sent, down=lines[owner].sent)
            else:
                _take(device, lines[device])
        for device, line in lines.items():
            now = monotonic()
            while (packet := line.arrived(now)) is not None:
                _give(other[device], packet)


def _take(device: int, line: Line) -> None:
    # A few at a time, so that packets of the other direction are not held up.
    with suppress(BlockingIOError):
        for _ in range(8):
            line.put(os.read(device, LARGEST), monotonic())


def _give(device: int, packet: bytes) -> None:
    # If the host's queue is full, the packet is lost, as on a real link, and TCP sends it again.
    with suppress(BlockingIOError):
        os.write(device, packet)


if __name__ == "__main__":
    main()
