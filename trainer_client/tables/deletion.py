"""Deletes objects by name: a table from all of its owners, whichever of them is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from ps_wire.errors import UnknownNameError
from ps_wire.runtime.failures import Origin
from ps_wire.runtime.nothing import nothing
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import DeleteRequest
from trainer_client.pending import Pending

if TYPE_CHECKING:
    from trainer_client.session.session import Session

AllOf: TypeAlias = "Callable[[Iterable[str]], Awaitable[list[Session]]]"


def delete(all_of: AllOf, session: Session, name: str) -> Pending[None]:
    """Removes a named object from an owner; if it is a table, its rows from all owners that have some.

    `all_of` gives the sessions with several owners, or raises `UnknownNameError`. Nothing is deleted then.
    """
    asked = session.submit(Request(delete=DeleteRequest(name=name)), None, lambda reply, _: tuple(reply.delete.owners))
    deleting = Pending.run(session.loop, _delete_rest(all_of, asked, name))
    deleting.origin = Origin(f"delete on owner {session.owner!r}")
    return deleting


def delete_rows(session: Session, name: str) -> Pending[None]:
    """Removes the rows of a table from one of its owners only. Raises `UnknownNameError` if there is none."""
    return session.submit(Request(delete=DeleteRequest(name=name, everywhere=True)), None, nothing)


async def _delete_rest(all_of: AllOf, asked: Pending[tuple[str, ...]], name: str) -> None:
    """Removes a table from all of its owners, if the first has answered that it is one, and has removed nothing."""
    owners = await asked
    if not owners:
        return
    try:
        sessions = await all_of(owners)
    except UnknownNameError as error:
        raise UnknownNameError(
            f"the table {name!r} has rows on {', '.join(owners)}, and was not deleted, because {error}"
        ) from None
    answers = await asyncio.gather(*(delete_rows(each, name) for each in sessions), return_exceptions=True)
    # An owner may have lost its rows, or somebody else has deleted the table at the same time.
    errors = [each for each in answers if isinstance(each, BaseException)]
    errors.sort(key=lambda error: isinstance(error, UnknownNameError))
    if errors and (not isinstance(errors[0], UnknownNameError) or len(errors) == len(sessions)):
        raise errors[0]
