"""Identities: who a caller is, how it has shown that, and what it may do."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ps_service.access import roles

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a caller is.

    Attributes:
        name: Its name; several tokens may have the same one. Empty for everybody on an owner without tokens.
        rights: What its roles include in the namespace that it has asked for, as bits.
        source: How it has shown who it is, for messages.
        key: What is revoked: the hash of its token, or the name of its certificate. Empty if nothing can be.
        others: What it may do in namespaces beside the default one, as bits.
        is_everywhere: Whether its rights hold in all namespaces: it is an admin or an owner in the default one.
    """

    def within(self, namespace: str) -> Identity:
        """This identity with the rights that it has in a namespace; empty is the default one."""
        if not namespace or not self.name or self.is_everywhere:
            return self
        return replace(self, rights=self.others.get(namespace, roles.KNOWN))

    name: str
    rights: int
    source: str
    key: str = ""
    others: Mapping[str, int] = field(default_factory=dict, compare=False)
    is_everywhere: bool = False

    def __str__(self) -> str:
        return f"{self.name!r} ({self.source})" if self.name else self.source


ANYONE: Final = Identity("", roles.ALL, "anyone, because this owner has no tokens")
"""Every caller of an owner without tokens, and code of this process."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Who has sent the request that is run: its identity, its trainer's id, and its namespace."""

    identity: Identity
    trainer: bytes
    namespace: str = ""


asking: Final[ContextVar[Asker | None]] = ContextVar("asking", default=None)
"""Who has sent the request whose handler runs; None where there are no tokens, and for the owner itself."""

caller: Final[ContextVar[Identity]] = ContextVar("caller", default=ANYONE)
"""Who has sent the gRPC call or HTTP request that the current task answers."""


def remembered(name: str) -> Identity:
    """The identity of a session that was restored, until its trainer comes back; it may do nothing."""
    return Identity(name, 0, "a session that was restored") if name else ANYONE
