"""Checks of the addresses that an owner listens on."""

from __future__ import annotations

import errno
import ipaddress
import socket


def check_allowed(listen: str, insecure: bool, has_tokens: bool = False) -> None:
    """Raises `ValueError` if other machines can reach an address (host and port), unless `insecure` allows that. Tokens
    change nothing, because they can be read on the way."""
    if not insecure and not is_loopback(listen):
        read = ", so everybody on the way can read and use the tokens" if has_tokens else ""
        raise ValueError(
            f"{listen} can be reached from other machines and traffic is not encrypted{read}; serve over TLS with "
            "--tls-cert and --tls-key, listen on 127.0.0.1, or pass --insecure if the network is trusted"
        )


def is_loopback(listen: str) -> bool:
    """Whether only processes of this machine can reach an address."""
    host = listen.rpartition(":")[0].strip("[]")
    if host == "localhost" or listen.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bound(listen: str) -> socket.socket:
    """A socket that listens on host and port (0: a free one). Raises `OSError` that says why if it cannot."""
    host, _, port = listen.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        # gRPC takes IPv4 on the address of all interfaces, too.
        both = host == "[::]" and socket.has_dualstack_ipv6()
        return socket.create_server((host.strip("[]"), int(port)), family=family, dualstack_ipv6=both)
    except OSError as error:
        reason = "is another owner, or another program, there?" if error.errno == errno.EADDRINUSE else error.strerror
        raise OSError(f"cannot listen on {listen}: {reason}") from error


def check_free(listen: str) -> None:
    """Raises `OSError` with the reason if an address cannot be bound; gRPC writes the reason only to its own log."""
    if listen.rpartition(":")[2].isdecimal():
        bound(listen).close()
