"""The group that an owner is a member of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_service.group.peers import Alone

if TYPE_CHECKING:
    from ps_service.group.peers import Peers


class Membership:
    """Holds the peers that hosted code can call: none until the owner joins a group.

    Attributes:
        awaited: Whether the owner is to join a group and has not done so yet.
    """

    def __init__(self) -> None:
        self.awaited = False
        self._peers: Peers = Alone()

    @property
    def peers(self) -> Peers:
        """The peers that hosted code can call."""
        return self._peers

    @property
    def joined(self) -> bool:
        """Whether the owner has joined a group. It then logs what functions raise, as members do in torch."""
        return not isinstance(self._peers, Alone)

    def join(self, peers: Peers) -> None:
        """Registers the peers of the group that the owner has joined."""
        self._peers = peers
        self.awaited = False
