"""One-time tokens, with which a trainer that has connected over gRPC moves its session to another connection."""

from __future__ import annotations

import asyncio
import secrets
from typing import Final

from ps_wire.direct import TOKEN_BYTES

_SECONDS: Final = 30.0
"""Seconds for which a token is valid."""


class Tokens:
    """The tokens of one listener. Used on the event loop."""

    def __init__(self) -> None:
        self._valid: dict[bytes, tuple[bytes, float]] = {}

    def __len__(self) -> int:
        return len(self._valid)

    def issue(self, trainer: bytes) -> bytes:
        """A new token for a trainer."""
        now = asyncio.get_running_loop().time()
        self._valid = {token: known for token, known in self._valid.items() if known[1] > now}
        token = secrets.token_bytes(TOKEN_BYTES)
        self._valid[token] = (trainer, now + _SECONDS)
        return token

    def take(self, token: bytes) -> bytes:
        """The trainer that a token was issued to, or an empty id; the token is not valid any more."""
        trainer, until = self._valid.pop(token, (b"", 0.0))
        return trainer if asyncio.get_running_loop().time() < until else b""
