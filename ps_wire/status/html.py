"""The status of an owner as HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ps_wire.status.owner import OwnerStatus

_MOST: Final = 20
"""Most rows of a table."""


def page(status: OwnerStatus) -> str:
    """A headline and tables, without styles of their own: they follow those of the notebook."""
    head = (
        f"<b>{escape(status.owner)}</b> is {escape(status.state)}, {status.connected_sessions:,} of "
        f"{status.sessions:,} sessions connected, {status.steps_per_second:.3g} steps/s, "
        f"{status.parameters:,} parameters"
    )
    return f"<div><p>{head}</p>{''.join(_tables(status))}</div>"


def _tables(status: OwnerStatus) -> Iterable[str]:
    yield _table(
        "Trainers",
        ("trainer", "host", "steps", "steps/s", "seen", "in flight", "bytes held"),
        [
            (
                each.name,
                each.host_name,
                f"{each.steps:,}",
                f"{each.steps_per_second:.3g}",
                f"{each.last_seen_seconds:.1f} s" if each.connected else f"away {each.away_seconds:.0f} s",
                f"{each.requests_in_flight:,}",
                f"{each.held_bytes:,}",
            )
            for each in status.trainers[:_MOST]
        ],
        status.sessions,
    )
    yield _table(
        "Optimizers",
        ("optimizer", "class", "lr", "version", "steps/s", "staleness p50/p99", "policy"),
        [
            (
                each.name or "(anonymous)",
                each.class_name,
                ", ".join(f"{rate:.3g}" for rate in each.lr),
                f"{each.version:,}",
                f"{each.steps_per_second:.3g}",
                "" if each.staleness_p50 is None else f"{each.staleness_p50}/{each.staleness_p99}",
                each.policy,
            )
            for each in status.optimizers[:_MOST]
        ],
        status.optimizers_hosted,
    )
    yield _table(
        "Objects",
        ("object", "class", "parameters", "bytes", "handles"),
        [
            (
                each.name or "(anonymous)",
                each.class_name,
                f"{each.parameters:,}",
                f"{each.bytes:,}",
                f"{each.references:,}",
            )
            for each in status.objects[:_MOST]
        ],
        status.objects_hosted - status.optimizers_hosted,
    )
    yield _table("Events", ("number", "event"), [(str(each.number), each.text) for each in status.events[-_MOST:]], 0)


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], total: int) -> str:
    if not rows:
        return ""
    more = f"<p>and {total - len(rows):,} more</p>" if total > len(rows) else ""
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><caption>{title}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"
