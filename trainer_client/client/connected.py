"""The owners that a client is connected to."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ps_wire.errors import InvalidArgumentError
from ps_wire.runtime import forks
from trainer_client.pending import Pending

if TYPE_CHECKING:
    from trainer_client.client.sessions import Sessions
    from trainer_client.session.session import Session


class Connected:
    """The owners that one trainer is connected to.

    Attributes: `trainer` is the id of this trainer, 16 random bytes; `closed` says whether it was closed; `others`
    finds further owners, and holds references to their objects.
    """

    def __init__(self, trainer: bytes, sessions: Sessions) -> None:
        self.trainer = trainer
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._sessions = sessions
        self.others = sessions.others

    async def open(self, names: Sequence[str] = (), directory: str = "") -> None:
        """Connects to every owner; arguments and errors as for `Sessions.open`."""
        await self._sessions.open(names, directory)

    async def close(self, error: BaseException | None = None) -> None:
        """Closes all sessions; owners free what this trainer held. Does nothing the second time, and in a fork.

        Requests without an answer are not reported if an exception ends the program: `error`, or that which is being
        handled.
        """
        fails = (error or sys.exception()) is not None
        if not forks.is_foreign(self._loop):
            self.closed = True
            await self._sessions.close(fails)

    @property
    def owners(self) -> list[str]:
        """Names of the owners, in the order in which they were given to `connect`.

        With `directory` alone, those of the group when it was asked last, by `connect` or `find_owners`. They are in
        the order of their numbers in the directory: one that joins comes last, for all trainers.
        """
        return self._sessions.names

    def find_owners(self, at_least: int = 1) -> Pending[list[str]]:
        """Asks the directory for the owners of the group, and connects to those that have joined since.

        The new ones then stand in `owners`, and tables that are made from now on use them, too. Those that have left
        are removed from it. A session that was given up is opened anew, if the owner is in the directory again.

        Args:
            at_least: How many owners there have to be. They are waited for as long as `connect_timeout`.

        Returns:
            `owners`.

        Raises:
            InvalidArgumentError: The client was told its owners, and not a directory alone.
            UnavailableError: The directory or an owner of the group cannot be reached in time, or there are not enough
                owners in time. `owners` is as it was.
        """
        group = self._sessions.group
        if group is None:
            raise InvalidArgumentError(
                "this client was told which owners to connect to: connect(directory='host:port'), without names, finds "
                "all owners of a group, also those that join later"
            )
        return Pending.run(self._loop, group.find(at_least))

    @property
    def sessions(self) -> Mapping[str, Session]:
        """The sessions, by the name of their owner."""
        return self._sessions.by_owner

    @property
    def trainer_name(self) -> str:
        """The first eight digits of its id, by which owners name it. The whole id is a secret."""
        return self.trainer.hex()[:8]

    def session(self, owner: str = "") -> Session:
        """The session with an owner, or with the first; `UnknownNameError` if the client is not connected to that."""
        return self._sessions.of(owner)
