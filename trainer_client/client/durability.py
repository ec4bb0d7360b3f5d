"""Waits until what owners have acknowledged is on their disks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import DurableRequest
from trainer_client.handles.listed import listed
from trainer_client.optimizers.results import all_of
from trainer_client.pending import DEFAULT, Pending

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from trainer_client.client.sessions import Sessions
    from trainer_client.session.session import Session


class DurabilityMethods:
    """What a client does about the disks of its owners."""

    _sessions: Sessions
    _loop: asyncio.AbstractEventLoop

    def durable(self, owners: str | Iterable[str] | None = None, *, timeout: float | None = DEFAULT) -> Pending[None]:
        """Waits until everything that owners have told this trainer so far is on their disks.

        That is what they have acknowledged and what this trainer has read, also of what others have changed. With
        `--durability interval:…` each owner is asked to sync at once, and does not wait for its interval. All that ask
        meanwhile share a sync. With `always` there is hardly anything to wait for.

        Args:
            owners: Names of the owners, or one; None for all that this client is connected to.
            timeout: Seconds this may take; None is no limit.

        Raises:
            InvalidArgumentError: An owner has no log; the message tells how to start it with one.
            StorageError: An owner could not write to its disk. What of its latest changes is there is not known.
            SessionLostError: The machine of an owner has crashed, and the owner has restarted without changes that it
                had acknowledged to this trainer.
            UnknownNameError: This client is not connected to an owner of that name.
        """
        by_owner = self._sessions.by_owner
        sessions = list(by_owner.values()) if owners is None else [self._sessions.of(each) for each in listed(owners)]
        asked = {each.owner: _asked(each, timeout) for each in sessions}

        async def wait() -> None:
            await all_of(asked)

        return Pending.run(self._loop, wait())


def _asked(session: Session, timeout: float | None) -> Pending[int]:
    request = Request(durable=DurableRequest(position=session.requests.position))
    return session.submit(request, None, lambda reply, _: reply.durable.position, timeout)
