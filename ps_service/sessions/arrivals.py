"""Tells of the trainers that come, are away, come back, and go."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.sessions.sessions import SessionState


def came(engine: Engine, session: SessionState) -> None:
    """A trainer has connected, for the first time or again."""
    who = _who(session)
    if not session.is_known:
        session.is_known = True
        how = f"over {session.transport}" if session.peer else "inside this process"
        engine.events.note("joined", f"{who} has connected {how}", trainer=session.name)
    elif session.is_away:
        engine.events.note_again(
            ("back", session.trainer), "back", f"{who} has connected again", "info", trainer=session.name
        )
    session.is_away = False


def away(engine: Engine, session: SessionState, why: str) -> None:
    """The connection of a trainer broke. Nothing is told while the owner stops, which breaks all of them.

    Args:
        engine: The owner.
        session: The session of the trainer.
        why: The reason; empty if it is not known.
    """
    if session.ended or session.streams or not session.is_known or engine.draining:
        return
    session.is_away = True
    lease = f"it has {engine.limits.lease_seconds:g} s to come back"
    text = f"the connection of {_who(session)} broke{f' ({why})' if why else ''}; {lease}"
    engine.events.note_again(("away", session.trainer), "away", text, "info", trainer=session.name)


def gone(engine: Engine, session: SessionState) -> None:
    """The session of a trainer has ended."""
    # Operators hear of what they have ended where they do it.
    if not session.is_known or session.why_lost:
        return
    steps = f" after {session.pace.steps:,} steps" if session.pace.steps else ""
    who = _who(session)
    if session.said_goodbye or session.transport == "unary":
        engine.events.note("left", f"{who} has left{steps}", trainer=session.name)
        return
    missed = session.idle_seconds()
    why = f"it has had no connection for {missed:.1f} s" if missed else "its session has ended"
    engine.events.note("lost", f"{who} is lost{steps}: {why}", "warning", trainer=session.name)


def _who(session: SessionState) -> str:
    process = str(session.process)
    # The address of a shared-memory connection is the process.
    address = "" if process and session.transport == "shared_memory" else session.peer
    known = ", ".join(filter(None, [process, address and f"from {address}"]))
    return f"trainer {session.name} ({known})" if known else f"trainer {session.name}"
