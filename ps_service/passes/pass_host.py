"""The parts of an owner that calls and their backward need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ps_service.hosting.host import Host

if TYPE_CHECKING:
    from ps_service.group.peers import Membership
    from ps_service.memory.held import HeldByAll
    from ps_service.passes.contexts import Contexts


class PassHost(Host, Protocol):
    """The owner of objects that passes call; see `Engine`."""

    @property
    def contexts(self) -> Contexts:
        """The open passes."""

    @property
    def held(self) -> HeldByAll:
        """What contexts and results that stay here hold, by trainer."""

    @property
    def membership(self) -> Membership:
        """The group that the owner is a member of."""
