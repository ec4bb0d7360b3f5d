"""Why a session was lost, for those that wait for its answers, and for passes that were open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ps_wire.errors import ContextLostError, SessionLostError

if TYPE_CHECKING:
    from ps_wire.refs import ContextId
    from ps_wire.v1.frames_pb2 import Welcome


_AGAIN: Final = (
    "Ask for the objects again as at the beginning: ps.module(…, name=…) and ps.optimizer(…) attach to what the owner "
    "has, and make what it has lost. Then repeat the pass; ps.run(step, …, attach=…) does both"
)

_AGAIN_AS_MEMBER: Final = (
    "What this process had there is gone, with all references to it: make it again, as with rpc.remote(…), and repeat "
    "the pass in a new context"
)


def lost(before: Welcome, now: Welcome, was_at: str, address: str, member: str = "") -> SessionLostError:
    """The error of requests that the session had when its owner welcomed the trainer anew. `was_at` and `address` are
    where it was before, and is now; `member` is the name of this process in its group."""
    why = now.why_lost or ("it has restarted" if before.incarnation != now.incarnation else "the lease had run out")
    if address != was_at and before.incarnation != now.incarnation:
        why = f"it is at {address} now, and what it had at {was_at} has not gone along"
    return SessionLostError(
        f"owner {now.owner!r} has ended this session: {why}. Whether the request ran is not known. "
        f"{_AGAIN_AS_MEMBER if member else _AGAIN}"
    )


def lost_part(owner: str, id: ContextId) -> ContextLostError:
    """The error of a pass that was open, and may have used an owner, when that has ended the session."""
    return ContextLostError(f"owner {owner!r} has lost its part of context {id} with the session: run forward again")
