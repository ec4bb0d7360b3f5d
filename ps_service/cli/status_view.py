"""Shows the status of owners, and their sessions, as tables that fit 80 columns."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ps_service.cli.status_tables import sections, sessions_of_owners, table, tables
from ps_service.cli.units import brief, rate, size
from ps_service.cli.watching import Fitted

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rich.console import RenderableType

    from ps_service.cli.probe import GroupStatus
    from ps_wire.status import OwnerStatus
    from ps_wire.status.parts import LogStatus
    from ps_wire.v1.operations_pb2 import SessionsReply

MOST_ROWS: Final = 20
"""Most rows of a table, unless the operator asks for another number."""

_NO_WIDTH: Final = 1000

_OVER: Final = {"shared_memory": "memory"}
"""Short names of transports."""

_STATES: Final = {
    "serving": ("serving", "green"),
    "draining": ("draining", "yellow"),
    "stalled": ("stalled: abandoned calls hold all of its threads", "red"),
}


def view(status: OwnerStatus, most: int = MOST_ROWS, owners: Collection[str] = ()) -> Group:
    """The status of an owner; with `owners`, the names of others of its group."""
    return Group(_headline(status), _process(status), "", _numbers(status), "", *_spaced(tables(status, most, owners)))


def fitted(status: OwnerStatus, most: int = MOST_ROWS) -> Fitted:
    """The status of an owner in the height of the terminal."""
    return Fitted([_headline(status), _process(status), _numbers(status)], sections(status), most)


def group_view(group: GroupStatus, most: int = MOST_ROWS) -> Group:
    """The status of all owners of a group: one line for each, and then each by itself."""
    names = {each.owner for each in group.owners} | {each.name for each in group.missing}
    parts: list[RenderableType] = [_owners(group, names)]
    parts += [Text(f"{each.name} at {each.address}: {each.why}", style="red") for each in group.missing]
    for status in group.owners:
        parts += ["", Rule(Text(status.owner), align="left"), view(status, most, names)]
    return Group(*parts)


def _owners(group: GroupStatus, names: Collection[str]) -> Table:
    made = table("Owners", "owner", ["trainers", "steps/s", "calls/s", "parameters", "memory"], ["state"])
    for each in group.owners:
        others = sessions_of_owners(each, names)
        connected = each.connected_sessions - sum(other.connected for other in others)
        made.add_row(
            Text(each.owner),
            Text(each.state, style=_STATES.get(each.state, ("", ""))[1]),
            f"{connected:,}/{each.sessions - len(others):,}",
            rate(each.steps_per_second),
            rate(each.calls_per_second),
            f"{each.parameters:,}",
            size(each.resident_bytes),
        )
    return made


def _spaced(parts: Sequence[RenderableType]) -> list[RenderableType]:
    """An empty line before each table but the first."""
    found: list[RenderableType] = []
    for each in parts:
        if isinstance(each, Table) and found:
            found.append("")
        found.append(each)
    return found


def _headline(status: OwnerStatus) -> Text:
    state = _STATES.get(status.state, (status.state, "yellow"))
    hours, rest = divmod(int(status.uptime_seconds), 3600)
    up = f", up {hours}:{rest // 60:02}:{rest % 60:02}, release {status.version}"
    return Text.assemble((status.owner, "bold"), " is ", state, up)


def _process(status: OwnerStatus) -> Text:
    where = f"process {status.process_id} on {status.host_name}, modules on {status.device}"
    return Text(f"{where}, directory at {status.directory}" if status.directory else where, style="dim")


def _numbers(status: OwnerStatus) -> Table:
    made = Table("what", "now", box=None, show_header=False, pad_edge=False)
    made.columns[1].overflow = "fold"
    kinds = ", ".join(f"{name}: {number:,}" for name, number in status.kinds.items() if number)
    paused = f", {status.paused_sessions:,} paused" if status.paused_sessions else ""
    held = f"{status.threads_waiting} waiting, {status.threads_lost} of at most {status.threads_spare} replaced"
    shared_memory, direct = status.shared_memory_connections, status.direct_connections
    for what, now in (
        ("objects", f"{status.objects_hosted:,}{f' ({kinds})' if kinds else ''}"),
        ("parameters", f"{status.parameters:,}, {size(status.bytes)} with buffers"),
        ("sessions", f"{status.sessions:,} ({status.connected_sessions:,} connected){paused}"),
        ("steps per second", rate(status.steps_per_second)),
        ("calls per second", rate(status.calls_per_second)),
        ("requests in flight", f"{status.requests_in_flight:,} ({status.waiting:,} waiting for something else)"),
        ("compute threads", f"{status.threads} ({held}{'; stalled' if status.stalled else ''})"),
        ("contexts open", f"{status.contexts:,}"),
        ("answers kept", f"{status.kept_answers:,}"),
        ("references", f"{status.references:,} given out, {status.borrowed:,} to other owners"),
        ("connections", f"{shared_memory:,} over shared memory, {direct:,} direct"),
    ):
        made.add_row(what, Text(now))
    if status.log is not None:
        made.add_row("log", _log(status.log, status))
    return made


def _log(log: LogStatus, status: OwnerStatus) -> Text:
    """The mode and size of a log, and what of it is not on the disk."""
    told = Text(f"{log.mode}, {size(log.bytes)}; ")
    if log.state != "writable":
        state = "failed: nothing can change before a restart" if log.state == "failed" else "full: nothing can change"
        return told.append(f"{state} ({log.why})", "red")
    if not log.unsynced_records:
        return told.append("all of it is on the disk")
    versions = sum(each.version - (each.durable_version or 0) for each in status.optimizers)
    return told.append(
        f"not on the disk: {log.unsynced_records:,} records with {versions:,} versions, {size(log.unsynced_bytes)}, "
        f"since {log.unsynced_seconds:.2f} s"
    )


def show_sessions(reply: SessionsReply, console: Console | None = None) -> None:
    """Prints an owner's sessions and contexts as tables: one line for each in 80 columns, and also for other programs,
    which get as many columns as it takes."""
    console = console or _console()
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


def _console() -> Console:
    """The terminal. What is no terminal has no width, unless somebody has set one."""
    is_open = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=_NO_WIDTH) if is_open else Console()


def _sessions(reply: SessionsReply) -> Table:
    made = table("Sessions", "session", ["age", "open", "busy", "holds", "refs"], ["from", "over"], is_narrow=True)
    for each in reply.sessions:
        held = each.request_bytes + each.waiting_bytes + each.answer_bytes + each.context_bytes
        # As Text, because rich reads markup in plain strings.
        over = Text(_OVER.get(each.transport, each.transport))
        if not each.connected:
            over = Text(f"away {brief(each.away_seconds)}", style="yellow")
        words = (Text(each.id), Text(each.peer or "this owner"), over, brief(each.age_seconds))
        made.add_row(*words, str(each.contexts), str(each.requests_in_flight), size(held), str(each.references))
    return made


def _contexts(reply: SessionsReply) -> Table:
    made = table("Contexts", "context", ["age", "unused for", "requests"], ["sessions"], is_narrow=True)
    for each in reply.contexts:
        unused = "in use" if each.requests_in_flight else brief(each.unused_seconds)
        words = (Text(each.id), Text(", ".join(each.sessions)), brief(each.age_seconds))
        made.add_row(*words, unused, str(each.requests_in_flight))
    return made
