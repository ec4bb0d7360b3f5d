"""Looks at the files of tokens and quotas. Ends the sessions of those whose tokens were revoked, or have expired."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from ps_service.execution.periodic import Periodic
from ps_wire.runtime.threads import BLOCKING

if TYPE_CHECKING:
    from ps_service.engine import Engine

_LOOK_SECONDS: Final = 0.5
"""Seconds between looks at the file of tokens."""


def periodic(engine: Engine) -> list[Periodic]:
    """What looks at the files of tokens and quotas while an owner runs, as far as it has them."""
    found = [Periodic(_LOOK_SECONDS, partial(_look, engine), "a look at the tokens")] if engine.access.is_on else []
    if engine.quotas.is_on:
        found.append(Periodic(_LOOK_SECONDS, partial(BLOCKING.run, engine.quotas.look), "a look at the quotas"))
    return found


async def _look(engine: Engine) -> None:
    await BLOCKING.run(engine.access.look)
    _end_revoked(engine)


def _end_revoked(engine: Engine) -> None:
    """Ends the sessions of identities whose token or certificate is not valid any more, and gives the others the rights
    that they have now."""
    for session in engine.sessions.all():
        identity = engine.access.current(session.identity)
        if identity is not None:
            session.belongs_to(identity)
            continue
        session.why_lost = f"what has shown that it belongs to {session.identity} was revoked, or has expired"
        engine.counters.sessions_ended["revoked"] += 1
        text = f"session {session.name} was ended: the access of {session.identity} was revoked, or has expired"
        engine.events.note("ended", text, "warning", trainer=session.name, by=session.by())
        engine.requests.dismiss(session)
