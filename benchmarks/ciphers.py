"""Measures how fast OpenSSL alone encrypts, and decrypts, with the cipher of TLS 1.3."""

from __future__ import annotations

import ssl
import statistics
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Final

from benchmarks.rows import KIB, MIB
from ps_wire.tls import TLS, ServerTLS

TIMES: Final = 5
"""Of 16 MiB each; the median counts."""

_PIECE: Final = 64 * KIB


def measure(certificates: Path, times: int = TIMES) -> dict[str, float]:
    """GB/s of one core in memory, without a socket: encrypting, decrypting, and both one after the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ServerTLS(certificates / "owner.pem", certificates / "owner.key")
    server = tls.context().wrap_bio(to_server, to_client, server_side=True)
    client = TLS(certificates / "ca.pem").context().wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    for _ in range(3):
        for side in (client, server):
            with suppress(ssl.SSLWantReadError):  # the other one has to answer
                side.do_handshake()
    found = [_once(client, server, to_server) for _ in range(times)]
    encrypting, decrypting = (statistics.median(each) for each in zip(*found, strict=True))
    seconds = {"encrypting": encrypting, "decrypting": decrypting, "both": encrypting + decrypting}
    return {name: 16 * MIB / each / 1e9 for name, each in seconds.items()}


def _once(client: ssl.SSLObject, server: ssl.SSLObject, arriving: ssl.MemoryBIO) -> tuple[float, float]:
    """Seconds for encrypting and for decrypting 16 MiB, in pieces as long as those of a connection."""
    sent, received = memoryview(bytes(_PIECE)), memoryview(bytearray(_PIECE))
    encrypting = decrypting = 0.0
    for _ in range(16 * MIB // _PIECE):
        began = perf_counter()
        client.write(sent)
        between = perf_counter()
        left = _PIECE
        while left:
            left -= server.read(left, received[_PIECE - left :])  # type: ignore[arg-type, operator]
        encrypting, decrypting = encrypting + between - began, decrypting + perf_counter() - between
    assert not arriving.pending
    return encrypting, decrypting
