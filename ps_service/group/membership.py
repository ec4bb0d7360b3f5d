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
        joined: Whether it has joined one. It then logs what functions raise, as members do in torch.
        peers: The peers that hosted code can call.
    """

    def __init__(self) -> None:
        self.awaited = self.joined = False
        self.peers: Peers = Alone()

    def join(self, peers: Peers) -> None:
        """Registers the peers of the group that the owner has joined."""
        self.peers = peers
        self.joined, self.awaited = True, False
