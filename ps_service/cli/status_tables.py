"""The tables of an owner's status. No name is cut: one that is too long for its column goes on in the next line."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ps_service.cli.units import brief, duration, milliseconds, rate, size

if TYPE_CHECKING:
    from ps_wire.status import OwnerStatus
    from ps_wire.status.parts import TrainerStatus

_EVENT_STYLES: Final = {"warning": "yellow", "error": "red"}

_SLOW_SHARE: Final = 0.5
"""A trainer with less than this share of the rate of the median trainer is marked."""


def tables(status: OwnerStatus, most: int, owners: Collection[str] = ()) -> list[RenderableType]:
    """The tables that have rows, of at most so many each. Sessions of `owners` are no trainers unless they train."""
    all_rows = (_memory, _quotas, _operations, _events)  # these are short
    return [part for each in sections(status, owners) for part in each(None if each.func in all_rows else most)]


Section = partial[list[RenderableType]]
"""Makes one table, with what stands below it, of at most so many rows (None: all). Without rows it is an empty list."""


def sections(status: OwnerStatus, owners: Collection[str] = ()) -> list[Section]:
    """What makes each of the tables."""
    makers = (
        *(_optimizers, _objects, _tables, _look_ups, _passes, _communicators),
        *(_memory, _quotas, _members, _operations, _events),
    )
    return [partial(_trainers, status, owners), *(partial(each, status) for each in makers)]


def table(
    title: str, name: str, numbers: Sequence[str], words: Sequence[str] = (), *, is_narrow: bool = False
) -> Table:
    """An empty table: a column of names, columns of words, and columns of numbers; with `is_narrow`, no column is wider
    than what is in it, and one blank less is between them."""
    # As Text, because names may stand in titles and headings, and rich reads markup in plain strings.
    made = Table(title=Text(title, "bold"), title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    made.padding = (0, 0, 0, 1) if is_narrow else (0, 1)
    # Folded, never cut: somebody has to find what is named.
    made.add_column(Text(name), overflow="fold", min_width=None if is_narrow else 12)
    for heading in words:
        made.add_column(Text(heading), overflow="fold", min_width=None if is_narrow else 8)
    for heading in numbers:
        made.add_column(Text(heading), justify="right", no_wrap=True)
    return made


def _parts(made: Table, known: int, notes: Sequence[RenderableType] = ()) -> list[RenderableType]:
    """A table that has rows, how many of the known ones it leaves out, and what stands below it."""
    if not made.row_count:
        return []
    left_out = known - made.row_count
    more = [Text(f"and {left_out:,} more", style="dim")] if left_out > 0 else []
    return [made, *more, *notes]


def sessions_of_owners(status: OwnerStatus, owners: Collection[str] = ()) -> list[TrainerStatus]:
    """The sessions of owners (this one, `owners` and those that the status tells) that have not trained."""
    names = {status.owner, *owners, *(each.name for each in status.members)}
    return [each for each in status.trainers if not each.steps and each.member in names]


def _trainers(status: OwnerStatus, owners: Collection[str], most: int | None) -> list[RenderableType]:
    left_out = sessions_of_owners(status, owners)
    trainers = [each for each in status.trainers if each not in left_out]
    made = table("Trainers", "trainer", ["since", "steps", "steps/s", "seen", "flying", "holds"])
    rates = sorted(each.steps_per_second for each in trainers if each.steps_per_second)
    median = rates[len(rates) // 2] if len(rates) > 1 else 0.0
    for each in trainers[:most]:
        slow = each.steps_per_second < _SLOW_SHARE * median and each.steps > 0
        made.add_row(
            _trainer(each),
            brief(each.age_seconds),
            f"{each.steps:,}",
            Text(rate(each.steps_per_second), style="yellow" if slow else ""),
            brief(each.last_seen_seconds),
            str(each.requests_in_flight),
            size(each.held_bytes),
        )
    return _parts(made, status.sessions - len(left_out))


def _trainer(trainer: TrainerStatus) -> Text:
    # As Text, because trainers choose their names, and rich reads markup in plain strings.
    told = Text(trainer.name)
    if trainer.host_name:
        told.append(f" {trainer.host_name}", style="dim")
    if not trainer.connected:
        told.append(f" away {brief(trainer.away_seconds)}", style="yellow")
    return told


def _optimizers(status: OwnerStatus, most: int | None) -> list[RenderableType]:
    made = table("Optimizers", "optimizer", ["lr", "version", "steps/s", "stale"], ["class"])
    notes: list[RenderableType] = []
    for each in status.optimizers[:most]:
        stale = "-" if each.staleness_p50 is None else f"{each.staleness_p50}/{each.staleness_p99}"
        class_name = Text(each.class_name.rpartition(".")[2])
        rates = list(dict.fromkeys(each.lr))
        lr = ", ".join(f"{value:.3g}" for value in rates[:2]) + (" …" if len(rates) > 2 else "")
        made.add_row(_name(each.name), class_name, lr or "-", f"{each.version:,}", rate(each.steps_per_second), stale)
        if each.policy:
            notes.append(Text(f"{each.name or '(anonymous)'}: {each.policy}, {_count(each.members, 'trainer')}"))
        if each.waiting_for:
            notes.append(Text(f"{each.name or '(anonymous)'} waits for {', '.join(each.waiting_for)}", style="yellow"))
    if made.row_count and any(each.staleness_p50 is not None for each in status.optimizers[:most]):
        notes.append(Text("stale: steps of others that half and 99 % of the last 512 steps had missed", style="dim"))
    return _parts(made, status.optimizers_hosted, notes)


def _objects(status: OwnerStatus, most: int | None) -> list[RenderableType]:
    made = table("Objects", "object", ["parameters", "bytes", "handles"], ["class"])
    for each in status.objects[:most]:
        class_name = Text(each.class_name)
        made.add_row(_name(each.name), class_name, f"{each.parameters:,}", size(each.bytes), f"{each.references:,}")
    return _parts(made, status.objects_hosted - status.optimizers_hosted)


def _tables(status: OwnerStatus, most: int | None) -> list[RenderableType]:
    made = table("Tables", "table", ["rows", "width", "bytes", "updates"])
    for each in status.tables[:most]:
        made.add_row(_name(each.name), f"{each.rows:,}", f"{each.dim:,}", size(each.bytes), f"{each.updates:,}")
    return _parts(made, status.tables_hosted)


def _look_ups(status: OwnerStatus, most: int | None) -> list[RenderableType]:
    made = table("Look-ups in tables", "table", ["ids", "hits", "admitted", "unique", "rows gone"])
    used = [each for each in status.tables if each.looked_up]
    for each in used[:most]:
        hits = each.looked_up - each.added - each.refused - each.missing
        made.add_row(
            *(_name(each.name), f"{each.looked_up:,}", _share(hits, each.looked_up)),
            *(_share(each.added, each.added + each.refused), _share(each.updated, each.gradients)),
            f"{each.expired + each.evicted + each.removed:,}",
        )
    # Of tables that the owner has not listed it is not known whether they are used.
    return _parts(made, len(used) + max(status.tables_hosted - len(status.tables), 0))


def _share(part: int, whole: int) -> str:
    return f"{max(part, 0) / whole:.1%}" if whole else ""


def _passes(status: OwnerStatus, most: int | None) -> list[RenderableType]:
    made = table("Open passes", "pass", ["age", "unused for", "requests"])
    for each in status.passes[:most]:
        unused = "in use" if each.requests_in_flight else duration(each.unused_seconds)
        made.add_row(Text(each.id), duration(each.age_seconds), unused, str(each.requests_in_flight))
    return _parts(made, status.contexts)


def _communicators(status: OwnerStatus, most: int | None) -> list[RenderableType]:
    made = table("Communicators", "communicator", ["members", "of", "open", "bytes"])
    notes: list[RenderableType] = []
    for each in status.communicators[:most]:
        made.add_row(Text(each.name), f"{each.members:,}", f"{each.size:,}", f"{each.open:,}", size(each.bytes))
        if each.waiting_for:
            notes.append(Text(f"{each.name} waits for {', '.join(each.waiting_for)}", style="yellow"))
    return _parts(made, status.communicators_open, notes)


def _memory(status: OwnerStatus, most: int | None) -> list[RenderableType]:
    made = table("Memory", "kind", ["bytes", "of at most", "share"])
    used_kinds = [each for each in status.memory if each.bytes]
    for each in used_kinds[:most]:
        # Of a budget for each trainer, the trainer counts that holds most.
        used = each.bytes if each.largest_bytes is None else each.largest_bytes
        share = f"{used / each.budget_bytes:.0%}" if each.budget_bytes else "-"
        limit = size(each.budget_bytes) if each.budget_bytes else "-"
        if each.largest_bytes is not None:
            limit += " each"
        made.add_row(Text(each.kind.replace("_", " ")), size(each.bytes), limit, share)
    return _parts(made, len(used_kinds))


def _quotas(status: OwnerStatus, most: int | None) -> list[RenderableType]:
    made = table("Quotas", "of", ["used", "of at most", "share"], ["quota"])
    limited = [each for each in status.quotas if each.quota is not None]
    for each in limited[:most]:
        assert each.quota is not None
        shown = size if each.name.endswith("_bytes") else _number
        share = f"{each.used / each.quota:.0%}" if each.quota else "-"
        style = "yellow" if each.used >= 0.9 * each.quota else ""
        words = Text(each.section), Text(each.name)
        made.add_row(*words, shown(each.used), shown(each.quota), Text(share, style=style))
    return _parts(made, len(limited))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


def _members(status: OwnerStatus, most: int | None) -> list[RenderableType]:
    made = table("Directory", "member", ["number"], ["address"])
    for each in status.members[:most]:
        name = Text(each.name)
        if each.away:
            name.append(" away", style="yellow")
        made.add_row(name, Text(each.address), str(each.id))
    return _parts(made, status.members_known)


def _operations(status: OwnerStatus, most: int | None) -> list[RenderableType]:
    made = table("Operations", "operation", ["calls", "errors", "mean", "p50", "p99"])
    for each in status.operations[:most]:
        mean = each.seconds / each.calls if each.calls else 0.0
        times = map(milliseconds, (mean, each.p50_seconds, each.p99_seconds))
        made.add_row(Text(each.name), f"{each.calls:,}", f"{each.errors:,}", *times)
    return _parts(made, len(status.operations))


def _events(status: OwnerStatus, most: int | None) -> list[RenderableType]:
    made = Table(title="Events", title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False)
    made.add_column("time", no_wrap=True)
    made.add_column("text", overflow="fold")
    for each in status.events[-most:] if most else status.events:
        at = time.strftime("%H:%M:%S", time.localtime(each.time_seconds))
        made.add_row(Text(at, style="dim"), Text(each.text, style=_EVENT_STYLES.get(each.level, "")))
    return _parts(made, len(status.events))


def _name(name: str) -> Text:
    return Text(name or "(anonymous)")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
