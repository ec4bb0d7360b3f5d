"""Prints an owner's sessions and contexts as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ps_service.cli.units import duration, size

if TYPE_CHECKING:
    from ps_wire.v1.operations_pb2 import SessionInfo, SessionsReply


def show(reply: SessionsReply, console: Console | None = None) -> None:
    """Prints the tables."""
    console = console or Console()
    number, contexts = len(reply.sessions), reply.open_contexts
    sessions = f"{number} session{'' if number == 1 else 's'}"
    console.print(
        Text.assemble((reply.owner, "bold"), f": {sessions}, {contexts} open context{'' if contexts == 1 else 's'}")
    )
    for table in (_sessions(reply), _contexts(reply)):
        if table.row_count:
            console.print(table)
    if contexts > len(reply.contexts):
        console.print(f"… and {contexts - len(reply.contexts):,} contexts that were used more recently")


def _sessions(reply: SessionsReply) -> Table:
    table = Table(title="Sessions", title_justify="left")
    table.add_column("session", no_wrap=True)
    for heading in ("peer", "transport", "state"):
        table.add_column(heading)
    for heading in ("age", "contexts", "requests", "bytes held", "references"):
        table.add_column(heading, justify="right")
    for each in reply.sessions:
        held = each.request_bytes + each.waiting_bytes + each.answer_bytes + each.context_bytes
        # As Text, because rich reads markup in plain strings.
        parameter_states = (
            Text(each.id),
            Text(each.peer),
            Text(each.transport),
            _state(each),
            duration(each.age_seconds),
        )
        table.add_row(*parameter_states, _open(each), str(each.requests_in_flight), size(held), str(each.references))
    return table


def _state(session: SessionInfo) -> str:
    return "connected" if session.connected else f"away for {duration(session.away_seconds)}"


def _open(session: SessionInfo) -> str:
    if not session.contexts:
        return "0"
    return f"{session.contexts} (oldest {duration(session.oldest_context_seconds)})"


def _contexts(reply: SessionsReply) -> Table:
    table = Table(title="Contexts", title_justify="left")
    table.add_column("context", no_wrap=True)
    table.add_column("sessions")
    for heading in ("age", "unused for", "requests"):
        table.add_column(heading, justify="right")
    for each in reply.contexts:
        unused = "in use" if each.requests_in_flight else duration(each.unused_seconds)
        parameter_states = (Text(each.id), Text(", ".join(each.sessions)), duration(each.age_seconds), unused)
        table.add_row(*parameter_states, str(each.requests_in_flight))
    return table
