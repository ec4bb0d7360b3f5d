"""Has gRPC refuse TLS 1.2 in this process. It has no option for that."""

from __future__ import annotations

import os
from typing import Final

_VARIABLE: Final = "GRPC_SSL_CIPHER_SUITES"

_NOBODYS: Final = "ECDHE-PSK-AES128-CBC-SHA"
"""A cipher of TLS 1.2 that needs a secret both sides share, of which there is none. TLS 1.3 has ciphers of its own."""


def refuse() -> None:
    """Leaves TLS 1.2 no other cipher, unless the variable is set. gRPC reads that when it is imported."""
    os.environ.setdefault(_VARIABLE, _NOBODYS)


def is_refused() -> bool:
    """Whether that was done."""
    return os.environ.get(_VARIABLE) == _NOBODYS
