"""What replicas need of the handle of their module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ps_wire.refs import Ref
    from trainer_client.session.session import Session


class Source(Protocol):
    """A module on an owner, of which replicas are made; see `RemoteModule`."""

    ref: Ref

    @property
    def session(self) -> Session:
        """The session with the owner."""

    def parameters(self) -> Sequence[Any]:
        """Handles of its parameters."""
