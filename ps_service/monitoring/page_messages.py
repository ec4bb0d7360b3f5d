"""What an open page is told, in JSON.

A message has the fields that have changed: `samples`, `lists`, `events` and `curves` by owner, `slow` with `lists`, and
others.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf.message import Message

if TYPE_CHECKING:
    from ps_service.monitoring.group_watch import GroupWatch
    from ps_service.monitoring.watched_owner import WatchedOwner
    from ps_wire.v1.operations_pb2 import StatusReply

_LISTS: Final = {
    "trainers": (
        *("id", "program", "member", "host_name", "process_id", "peer", "connected", "away_seconds", "age_seconds"),
        *("steps", "steps_per_second", "last_seen_seconds", "requests_in_flight"),
        *("request_bytes", "waiting_bytes", "answer_bytes", "context_bytes"),
    ),
    "optimizers": (
        *("name", "class_name", "version", "lr", "steps_per_second", "staleness_p50", "staleness_p99"),
        *("policy", "waiting_for"),
    ),
    "tables": ("name", "rows", "bytes", "dim", "updates"),
    "memory": ("kind", "bytes", "budget_bytes", "largest_bytes"),
    "quotas": ("section", "name", "used", "quota"),
}
"""The lists of a status that pages show, and the fields that they need of each entry."""

_FACTS: Final = ("incarnation", "version", "memory_bytes", "max_owner_bytes", "max_context_bytes", "objects")
"""What pages show of the answer of an owner, beside its samples."""


class KnownCurves(NamedTuple):
    """What pages know of the curves of an owner: how many values of each, those that have ended, and how many values
    have none."""

    seen: Mapping[int, int]
    ended: frozenset[int]
    left_out: int

    @classmethod
    def of(cls, owner: WatchedOwner) -> KnownCurves:
        """All that is known of an owner."""
        ended = frozenset(number for number, curve in owner.curves.items() if curve.ended)
        return cls(owner.seen(), ended, owner.values_left_out)


NO_CURVES: Final = KnownCurves({}, frozenset(), 0)


def curves(owner: WatchedOwner, known: KnownCurves) -> dict[str, Any]:
    """What pages do not know of the curves of an owner, and the numbers of all, as an entry of `curves`."""
    fresh = [each for number, each in owner.curves.items() if known.seen.get(number, 0) != each.seen]
    return {
        "fresh": [each.news(known.seen.get(each.number, 0)) for each in fresh],
        "numbers": list(owner.curves),
        "ended": [number for number, each in owner.curves.items() if each.ended],
        "left_out": owner.values_left_out,
    }


def dumped(told: Any) -> str:
    """JSON on one line. Numbers that JSON does not know, such as an infinite learning rate, are null."""
    try:
        return json.dumps(told, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(told), separators=(",", ":"))


def joined(fields: Mapping[str, str]) -> str:
    """An object in JSON, of values that are in JSON already."""
    return "{" + ",".join(f"{dumped(name)}:{value}" for name, value in fields.items()) + "}"


def _finite(told: Any) -> Any:
    if isinstance(told, float):
        return told if math.isfinite(told) else None
    if isinstance(told, Mapping):
        return {key: _finite(value) for key, value in told.items()}
    return [_finite(each) for each in told] if isinstance(told, (list, tuple)) else told


def facts(owner: WatchedOwner) -> dict[str, Any]:
    """What is told of an owner every second."""
    told: dict[str, Any] = {
        "name": owner.name,
        "address": owner.address,
        "state": owner.state,
        "since": round(owner.since, 3),
        "why": owner.why,
        "listed": owner.listed,
    }
    if owner.facts is not None:
        told |= plain(owner.facts, _FACTS) | {"uptime_seconds": round(owner.facts.uptime_seconds, 1)}
    return told


def of_group(watch: GroupWatch) -> dict[str, str]:
    """The fields of a message that are told every second, each in JSON."""
    told = {"owners": [facts(each) for each in watch.owners.values()], "unseen": watch.unseen, "alone": watch.why_alone}
    return {"now": f"{time.time():.3f}", **{name: dumped(value) for name, value in told.items()}}


def lists(status: StatusReply) -> dict[str, Any]:
    """Trainers, optimizers, tables, memory and quotas of an owner, and its log, as an entry of `lists`."""
    told: dict[str, Any] = {
        name: [plain(each, fields) for each in getattr(status, name)] for name, fields in _LISTS.items()
    }
    return told | {"log": plain(status.log) if status.HasField("log") else None}


def plain(message: Message, only: Collection[str] = ()) -> dict[str, Any]:
    """All fields of a message, or `only` some, as what JSON has; absent ones have no entry.

    Integers of 64 bits are numbers here. Protobuf's own JSON has them as strings.
    """
    fields = [each for each in message.DESCRIPTOR.fields if not only or each.name in only]
    there = (each.name for each in fields if not each.has_presence or message.HasField(each.name))
    return {name: _plain(getattr(message, name)) for name in there}


def _plain(value: Any) -> Any:
    if isinstance(value, (str, int, float)):
        return value
    return plain(value) if isinstance(value, Message) else [_plain(each) for each in value]
