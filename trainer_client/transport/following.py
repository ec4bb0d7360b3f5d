"""A connector that asks at each dial where its owner is."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ps_wire.connections.connection import ConnectionBroken

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ps_wire.connections.connection import Connection, Connector
    from ps_wire.v1.frames_pb2 import DirectOffer, SharedMemoryOffer

_log = logging.getLogger(__name__)


class FollowingConnector:
    """Opens streams to one owner wherever it is.

    `find` gives its address, or raises any exception, and is asked before each dial but the first to an `address` that
    is known. If it fails, the last address is tried again. `dial` makes the connector of an address. `who` stands for
    the address in messages until one is known.
    """

    def __init__(
        self, find: Callable[[], Awaitable[str]], dial: Callable[[str], Connector], who: str, address: str = ""
    ) -> None:
        self._find = find
        self._dial = dial
        self._who = who
        self._connector = dial(address) if address else None
        self._is_new = bool(address)

    def find_with(self, find: Callable[[], Awaitable[str]]) -> None:
        """Asks this function from now on."""
        self._find = find

    @property
    def address(self) -> str:
        """Where the owner was found last."""
        return self._who if self._connector is None else self._connector.address

    async def connect(self) -> Connection:
        if not self._is_new:
            await self._look()
        self._is_new = False
        return await self._known.connect()

    async def connect_shared_memory(self, offer: SharedMemoryOffer, max_message_bytes: int) -> Connection | None:
        return await self._known.connect_shared_memory(offer, max_message_bytes)

    async def connect_direct(self, offer: DirectOffer) -> Connection | None:
        return await self._known.connect_direct(offer)

    async def close(self) -> None:
        """Closes the connector of the last address."""
        if self._connector is not None:
            await self._connector.close()

    @property
    def _known(self) -> Connector:
        assert self._connector is not None, "an address was found"
        return self._connector

    async def _look(self) -> None:
        try:
            address = await self._find()
        except Exception as error:
            if self._connector is None:
                raise ConnectionBroken(f"its address is not known: {str(error) or type(error).__name__}") from error
            _log.debug("%s stays at %s: %r", self._who, self.address, error)
            return
        if self._connector is None or self._connector.address != address:
            before, self._connector = self._connector, self._dial(address)
            if before is not None:
                _log.info("%s is looked for at %s, and no longer at %s", self._who, address, before.address)
                await before.close()
