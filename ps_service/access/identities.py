"""Identities: who a caller is, how it has shown that, and what it may do."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from ps_service.access import roles


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a caller is.

    Attributes:
        name: Its name; several tokens may have the same one. Empty for everybody on an owner without tokens.
        rights: What its roles include, as bits.
        source: How it has shown who it is, for messages.
        key: What is revoked: the hash of its token, or the name of its certificate. Empty if nothing can be.
    """

    name: str
    rights: int
    source: str
    key: str = ""

    def __str__(self) -> str:
        return f"{self.name!r} ({self.source})" if self.name else self.source


ANYONE: Final = Identity("", roles.ALL, "anyone, because this owner has no tokens")
"""Every caller of an owner without tokens, and code of this process."""

caller: Final[ContextVar[Identity]] = ContextVar("caller", default=ANYONE)
"""Who has sent the gRPC call or HTTP request that the current task answers."""


def remembered(name: str) -> Identity:
    """The identity of a session that was restored, until its trainer comes back; it may do nothing."""
    return Identity(name, 0, "a session that was restored") if name else ANYONE
