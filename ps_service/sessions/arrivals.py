"""Tells of the trainers that come, are away, come back, and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ps_service.measures.events import Events
    from ps_service.sessions.sessions import SessionState
    from ps_wire.errors import PsError


_HOW: Final = {
    "grpc": "over gRPC",
    "direct": "over the direct port",
    "shared_memory": "over shared memory",
    "unary": "over gRPC, with single requests",
    "in_process": "inside this process",
}
"""What is said of each transport."""


def came(events: Events, session: SessionState, may_move: bool = False) -> None:
    """A trainer has connected. One that may move to a faster connection is told of once it has, or sends something."""
    if may_move and (session.is_away or not session.is_known):
        return
    who = _who(session)
    if not session.is_known:
        session.is_known = True
        how = _HOW[session.transport]
        events.note("joined", f"{who} has connected {how}", trainer=session.name, by=session.by())
    elif session.is_away:
        alike, how = ("back", session.trainer), _HOW[session.transport]
        events.note("back", f"{who} has connected again {how}", trainer=session.name, alike=alike, by=session.by())
    session.is_away = False


def away(events: Events, session: SessionState, why: str, lease_seconds: float) -> None:
    """The connection of a trainer broke; the reason is empty if it is not known."""
    if session.ended or session.streams or not session.is_known:
        return
    session.is_away = True
    lease = f"it has {lease_seconds:g} s to come back"
    text = f"the connection of {_who(session)} broke{f' ({why})' if why else ''}; {lease}"
    events.note("away", text, trainer=session.name, alike=("away", session.trainer))


def gone(events: Events, session: SessionState) -> None:
    """The session of a trainer has ended."""
    # Operators hear of what they have ended where they do it.
    if not session.is_known or session.why_lost:
        return
    steps = f" after {session.pace.steps:,} steps" if session.pace.steps else ""
    who = _who(session)
    if session.said_goodbye or session.transport == "unary":
        events.note("left", f"{who} has left{steps}", trainer=session.name, by=session.by())
        return
    missed = session.idle_seconds()
    why = f"it has had no connection for {missed:.1f} s" if missed else "its session has ended"
    events.note("lost", f"{who} is lost{steps}: {why}", "warning", trainer=session.name, by=session.by())


def _who(session: SessionState) -> str:
    process = str(session.process)
    # The address of a shared-memory connection is the process.
    address = "" if process and session.transport == "shared_memory" else session.peer
    known = ", ".join(filter(None, [process, address and f"from {address}"]))
    return f"trainer {session.name} ({known})" if known else f"trainer {session.name}"


def denied(events: Events, identity: str, what: str, why: PsError) -> None:
    """A request was refused for want of a token or a role. `identity` is the name of who sent it, if that is known."""
    text = f"{what} was refused to {identity or 'a stranger'}: {why}"
    events.note("refused", text, "warning", alike=("denied", identity, what), by={"identity": identity})


def refused(events: Events, what: str, address: str, why: str, certificate: str = "") -> None:
    """A connection was refused, for a reason."""
    by, alike = {"address": address, "certificate": certificate}, ("refused", address.rpartition(":")[0])
    events.note("refused", f"{what} from {address} was refused: {why}", "warning", alike=alike, by=by)
