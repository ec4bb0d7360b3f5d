"""Prints an owner's status as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ps_wire.status import ObjectStatus, OptimizerStatus, OwnerStatus


def show(status: OwnerStatus, console: Console | None = None) -> None:
    """Prints the tables."""
    console = console or Console()
    console.print(_headline(status))
    console.print(_numbers(status))
    for table in (_objects(status), _optimizers(status), _tables(status), _members(status), _operations(status)):
        if table.row_count:
            console.print(table)


def size(nbytes: float) -> str:
    """A number of bytes as text, such as `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def _headline(status: OwnerStatus) -> Text:
    state = ("serving", "green") if status.serving else ("draining", "yellow")
    if status.stalled:
        state = ("stalled: abandoned calls hold all of its threads", "red")
    hours, rest = divmod(int(status.uptime_seconds), 3600)
    return Text.assemble(
        (status.owner, "bold"), " is ", state, f", up {hours}:{rest // 60:02}:{rest % 60:02}, release {status.version}"
    )


def _numbers(status: OwnerStatus) -> Table:
    table = Table("what", "now", box=None, show_header=False)
    table.columns[1].justify = "right"
    for what, now in (
        ("objects", f"{len(status.objects)}"),
        ("parameters", f"{status.parameters:,}"),
        ("bytes hosted", size(status.bytes)),
        ("sessions", f"{status.sessions} ({status.connected_sessions} connected)"),
        ("shared-memory connections", f"{status.shared_memory_connections} ({size(status.shared_bytes)} shared)"),
        ("direct connections", f"{status.direct_connections}"),
        ("contexts open", f"{status.contexts}"),
        ("references given out", f"{status.references}"),
        ("references to other owners", f"{status.borrowed}"),
        ("requests in flight", f"{status.requests_in_flight} ({status.waiting} waiting for something else)"),
        ("compute threads", f"{status.threads} ({_held(status)})"),
        ("answers kept", f"{status.kept_answers}"),
        ("bytes of requests", f"{size(status.request_bytes)} ({size(status.waiting_bytes)} waiting for others)"),
        ("bytes of answers", size(status.answer_bytes)),
        ("bytes of contexts", size(status.context_bytes)),
        ("sessions paused", f"{status.paused_sessions}"),
        ("calls per second", f"{status.calls_per_second:.1f}"),
        ("memory of the process", size(status.resident_bytes)),
    ):
        table.add_row(what, now)
    return table


def _held(status: OwnerStatus) -> str:
    held = f"{status.threads_waiting} waiting, {status.threads_lost} of at most {status.threads_spare} replaced"
    return f"{held}; stalled" if status.stalled else held


def _objects(status: OwnerStatus) -> Table:
    table = Table("object", "class", title="Objects", title_justify="left")
    for heading in ("parameters", "bytes", "handles"):
        table.add_column(heading, justify="right")
    for each in status.objects:
        table.add_row(*_named(each), f"{each.parameters:,}", size(each.bytes), str(each.references))
    return table


def _optimizers(status: OwnerStatus) -> Table:
    table = Table("optimizer", "class", title="Optimizers", title_justify="left")
    for heading in ("parameters", "version"):
        table.add_column(heading, justify="right")
    for each in status.optimizers:
        table.add_row(*_named(each), f"{each.parameters:,}", f"{each.version:,}")
    return table


def _tables(status: OwnerStatus) -> Table:
    table = Table("table", title="Tables", title_justify="left")
    for heading in ("rows", "numbers in a row", "bytes", "updates"):
        table.add_column(heading, justify="right")
    for each in status.tables:
        table.add_row(Text(each.name), f"{each.rows:,}", f"{each.dim:,}", size(each.bytes), f"{each.updates:,}")
    return table


def _members(status: OwnerStatus) -> Table:
    table = Table("member", "address", title="Directory", title_justify="left")
    table.add_column("number", justify="right")
    for each in status.members:
        table.add_row(Text(each.name), Text(each.address), str(each.id))
    return table


def _named(each: ObjectStatus | OptimizerStatus) -> tuple[Text, Text]:
    # As Text, because trainers choose the names and rich reads markup in plain strings.
    return Text(each.name or "(anonymous)"), Text(each.class_name)


def _operations(status: OwnerStatus) -> Table:
    table = Table("operation", title="Operations", title_justify="left")
    for heading in ("calls", "errors", "mean"):
        table.add_column(heading, justify="right")
    for each in status.operations:
        mean = 1000 * each.seconds / each.calls if each.calls else 0.0
        table.add_row(each.name, f"{each.calls:,}", f"{each.errors:,}", f"{mean:.2f} ms")
    return table
