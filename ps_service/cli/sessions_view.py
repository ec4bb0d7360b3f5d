"""Prints an owner's sessions and contexts as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from ps_service.cli.status_tables import table
from ps_service.cli.units import brief, size

if TYPE_CHECKING:
    from rich.table import Table

    from ps_wire.v1.operations_pb2 import SessionsReply


def show(reply: SessionsReply, console: Console | None = None) -> None:
    """Prints the tables."""
    console = console or Console()
    number, contexts = len(reply.sessions), reply.open_contexts
    sessions = f"{number} session{'' if number == 1 else 's'}"
    console.print(
        Text.assemble((reply.owner, "bold"), f": {sessions}, {contexts} open context{'' if contexts == 1 else 's'}")
    )
    for each in (_sessions(reply), _contexts(reply)):
        if each.row_count:
            console.print(each)
    if contexts > len(reply.contexts):
        console.print(f"… and {contexts - len(reply.contexts):,} contexts that were used more recently")


def _sessions(reply: SessionsReply) -> Table:
    made = table("Sessions", "session", ["age", "open", "busy", "holds", "refs"], ["from", "over"])
    for each in reply.sessions:
        held = each.request_bytes + each.waiting_bytes + each.answer_bytes + each.context_bytes
        # As Text, because rich reads markup in plain strings.
        told = Text(each.id)
        if not each.connected:
            told.append(f" away {brief(each.away_seconds)}", style="yellow")
        words = (told, Text(each.peer or "this owner"), Text(each.transport.replace("_", " ")), brief(each.age_seconds))
        made.add_row(*words, str(each.contexts), str(each.requests_in_flight), size(held), str(each.references))
    return made


def _contexts(reply: SessionsReply) -> Table:
    made = table("Contexts", "context", ["age", "unused for", "requests"], ["sessions"])
    for each in reply.contexts:
        unused = "in use" if each.requests_in_flight else brief(each.unused_seconds)
        words = (Text(each.id), Text(", ".join(each.sessions)), brief(each.age_seconds))
        made.add_row(*words, unused, str(each.requests_in_flight))
    return made
