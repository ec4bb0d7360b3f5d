"""The owners that a client is connected to."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ps_wire.runtime import forks

if TYPE_CHECKING:
    from trainer_client.client.sessions import Sessions
    from trainer_client.session.session import Session


class Connected:
    """The owners that one trainer is connected to.

    Args:
        trainer: The id of the trainer.
        sessions: Its sessions with them.

    Attributes:
        trainer: The id of this trainer, 16 random bytes.
        others: Finds further owners, and holds references to their objects.
    """

    def __init__(self, trainer: bytes, sessions: Sessions) -> None:
        self.trainer = trainer
        self._loop = asyncio.get_running_loop()
        self._sessions = sessions
        self.others = sessions.others

    async def open(self, names: Sequence[str] = ()) -> None:
        """Connects to every owner.

        Args:
            names: Further owners, looked up in the directory of the first owner.

        Raises:
            UnavailableError: An owner cannot be reached in time.
            UnknownNameError: An owner has not entered the directory in time.
            InvalidArgumentError: Two owners have the same name.
        """
        await self._sessions.open(names)

    async def close(self, error: BaseException | None = None) -> None:
        """Closes all sessions; owners free what this trainer held. Does nothing the second time, and in a fork.

        Args:
            error: The exception that ends the program; that which is being handled, if it is None. Requests without an
                answer are not reported then.
        """
        fails = (error or sys.exception()) is not None
        if not self.is_foreign:
            await self._sessions.close(fails)

    @property
    def is_foreign(self) -> bool:
        """Whether the parent of this forked process opened it; it cannot be used here then."""
        return forks.is_foreign(self._loop)

    @property
    def owners(self) -> list[str]:
        """Names of the owners, in the order of their addresses."""
        return list(self._sessions.by_owner)

    @property
    def sessions(self) -> Mapping[str, Session]:
        """The sessions, by the name of their owner."""
        return self._sessions.by_owner

    @property
    def trainer_name(self) -> str:
        """The first eight digits of its id, by which owners name it. The whole id is a secret."""
        return self.trainer.hex()[:8]

    def session(self, owner: str = "") -> Session:
        """The session with an owner; with the first owner, if no name is given.

        Raises:
            UnknownNameError: The client is not connected to an owner of that name.
        """
        return self._sessions.of(owner)
