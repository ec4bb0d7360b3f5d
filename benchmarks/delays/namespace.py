"""Puts this process into a network namespace of its own, whose only way out is a device that the link serves."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
from typing import Final

OWNER: Final = "198.18.0.1"
TRAINER: Final = "198.18.0.2"
"""Addresses of the range that is reserved for benchmarks. They exist in the two namespaces only."""

MTU: Final = 16000

_CLONE_NEWNET: Final = 0x40000000
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN: Final = 0x0001
_IFF_NO_PI: Final = 0x1000
_DEVICE: Final = "line0"
_TUN: Final = "/dev/net/tun"


def missing() -> str:
    """Why this machine cannot have such namespaces; empty if it can."""
    if not hasattr(ctypes.CDLL(None), "unshare"):
        return "there are no network namespaces on this system"
    if shutil.which("ip") is None:
        return "the command ip is missing (package iproute2)"
    if not os.path.exists(_TUN):
        return f"there is no {_TUN}"
    pid = os.fork()
    if pid == 0:
        # A child tries it, because a process cannot go back.
        try:
            _unshare()
            os.close(_open("trial"))
            os._exit(0)
        except OSError:
            os._exit(1)
    return "network namespaces and devices need the rights of root" if os.waitpid(pid, 0)[1] else ""


def enter(path: str, host: str) -> None:
    """Makes the namespace and its device, and hands the device over to the link.

    Args:
        path: The link's socket.
        host: `owner` or `trainer`.

    Raises:
        OSError: The rights are missing.
    """
    _unshare()
    device = _open(_DEVICE)
    address = {"owner": OWNER, "trainer": TRAINER}[host]
    for command in (
        ["link", "set", "lo", "up"],
        ["address", "add", f"{address}/30", "dev", _DEVICE],
        ["link", "set", "dev", _DEVICE, "mtu", str(MTU), "txqueuelen", "5000", "up"],
    ):
        subprocess.run(["ip", *command], check=True)
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        socket.send_fds(link, [host.encode()], [device])
    os.close(device)


def _unshare() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")


def _open(name: str) -> int:
    device = os.open(_TUN, os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return device
