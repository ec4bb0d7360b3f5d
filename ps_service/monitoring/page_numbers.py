"""What the group is doing now, as /status.json has it and as the page first shows it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from ps_service.measures.histogram import merged, quantile
from ps_service.metrics.counters import DURATION_BOUNDS
from ps_service.monitoring import page_messages
from ps_service.monitoring.slow_trainers import trainers_of
from ps_service.monitoring.watched_owner import ANSWERING
from ps_service.passes.staleness import STALENESS_BOUNDS
from ps_wire.status import OwnerStatus

if TYPE_CHECKING:
    from ps_service.monitoring.group_watch import GroupWatch
    from ps_service.monitoring.watched_owner import WatchedOwner
    from ps_wire.v1.operations_pb2 import OperationSample, Sample, SessionInfo

WINDOW: Final = 10
"""Samples over which rates and quantiles are taken: ten seconds."""


def described(watch: GroupWatch) -> dict[str, Any]:
    """The group now. docs/page.md describes the fields."""
    owners = list(watch.owners.values())
    answering = [each for each in owners if each.state in ANSWERING]
    recent = [_recent(each) for each in answering]
    trainers = trainers_of(answering, {each.name for each in owners})
    known_by: defaultdict[str, list[str]] = defaultdict(list)
    for owner in answering:
        for session in () if owner.status is None else owner.status.trainers:
            known_by[session.id].append(owner.name)
    return {
        "time_seconds": round(time.time(), 3),
        "unseen_members": watch.unseen,
        "directory_error": watch.why_alone,
        "totals": {
            "owners": len(owners),
            "owners_answering": len(answering),
            "trainers_connected": sum(any(each.connected for each in sessions) for sessions in trainers.values()),
            "trainers_slow": len(watch.slow.why.keys() & trainers.keys()),
            "resident_bytes": sum(samples[-1].resident_bytes for samples in recent if samples),
            **_rates(recent),
            "steps_per_second": round(_trainer_steps(trainers, recent), 3),
        },
        "owners": [_owner(each) for each in owners],
        "trainers": [
            _trainer(id, sessions, known_by[id], watch.slow.why.get(id, "")) for id, sessions in trainers.items()
        ],
    }


def _trainer(id: str, sessions: Sequence[SessionInfo], owners: Sequence[str], slow: str) -> dict[str, Any]:
    first = sessions[0]
    return {
        "id": id,
        **{name: getattr(first, name) for name in ("program", "member", "host_name", "process_id")},
        "owners": list(owners),
        "connected": any(each.connected for each in sessions),
        "steps": max(each.steps for each in sessions),
        "steps_per_second": round(max(each.steps_per_second for each in sessions), 3),
        "slow": slow,
    }


def _trainer_steps(trainers: Mapping[str, Sequence[SessionInfo]], recent: Iterable[Sequence[Sample]]) -> float:
    """Steps per second of all trainers. A pass that steps on several owners is one step.

    The owners have counted those of trainers that have left, too, but not which pass they belong to. So it is at least
    as many as on any one owner.
    """
    connected = sum(max(each.steps_per_second for each in of) for of in trainers.values())
    return max(connected, *(_per_second(samples, lambda each: each.trainer_steps) for samples in recent), 0.0)


def _per_second(samples: Sequence[Sample], count: Callable[[Sample], int]) -> float:
    seconds = sum(each.seconds for each in samples)
    return sum(map(count, samples)) / seconds if seconds else 0.0


def _recent(owner: WatchedOwner) -> list[Sample]:
    return [each.message for each in list(owner.samples)[-WINDOW:]]


def _owner(owner: WatchedOwner) -> dict[str, Any]:
    recent = _recent(owner) if owner.state in ANSWERING else []
    told: dict[str, Any] = page_messages.facts(owner) | {"now": {}} | _rates([recent])
    if recent:
        told["now"] = {
            name: value
            for name, value in page_messages.plain(recent[-1]).items()
            if name.endswith(("_bytes", "_sessions", "_in_flight")) and name[:4] != "sent"
        }
    told["operations"] = _operations(recent)
    told["status"] = None if owner.status is None else OwnerStatus.from_message(owner.status).as_plain()
    told["events"] = [page_messages.plain(each) for each in owner.events]
    return told


def _rates(of_owners: Sequence[Sequence[Sample]]) -> dict[str, Any]:
    """Rates of several owners are added; their histograms, too."""
    staleness = merged(each.staleness for each in chain(*of_owners))
    durations = merged(one.durations for each in chain(*of_owners) for one in each.operations)

    def rate(count: Callable[[Sample], int]) -> float:
        return round(sum((_per_second(each, count) for each in of_owners), 0.0), 3)

    return {
        "steps_per_second": rate(lambda each: each.steps),
        "requests_per_second": rate(lambda each: sum(sum(one.durations[1::2]) for one in each.operations)),
        "errors_per_second": rate(lambda each: sum(one.errors for one in each.operations)),
        "staleness_p50": quantile(0.5, staleness, STALENESS_BOUNDS),
        "staleness_p99": quantile(0.99, staleness, STALENESS_BOUNDS),
        "request_p50_seconds": quantile(0.5, durations, DURATION_BOUNDS),
        "request_p99_seconds": quantile(0.99, durations, DURATION_BOUNDS),
    }


def _operations(recent: Sequence[Sample]) -> list[dict[str, Any]]:
    """The operations with a request in the last seconds, those with most requests first."""
    seconds = sum(each.seconds for each in recent)
    found: defaultdict[str, list[OperationSample]] = defaultdict(list)
    for sample in recent:
        for each in sample.operations:
            found[each.name].append(each)
    told = []
    for name, all_of_it in found.items():
        durations = merged(each.durations for each in all_of_it)
        told.append(
            {
                "name": name,
                "calls_per_second": round(sum(durations.values()) / seconds, 3),
                "errors_per_second": round(sum(each.errors for each in all_of_it) / seconds, 3),
                "p50_seconds": quantile(0.5, durations, DURATION_BOUNDS),
                "p99_seconds": quantile(0.99, durations, DURATION_BOUNDS),
            }
        )
    return sorted(told, key=lambda each: -each["calls_per_second"])


def lists(group: dict[str, Any], most: int) -> dict[str, list[dict[str, Any]]]:
    """The lists of all owners (from `described`), each entry with the name of its owner, the latest events first."""
    names = ("trainers", "optimizers", "tables", "memory", "quotas")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for owner in group["owners"]:
        for name, entries in found.items():
            entries += [each | {"owner": owner["name"]} for each in (owner["status"] or {}).get(name, ())]
    found["quotas"] = [each for each in found["quotas"] if each["quota"] is not None]
    owners = {owner["name"] for owner in group["owners"]}
    found["trainers"] = [each for each in found["trainers"] if each["steps"] or each["member"] not in owners]
    for name in ("operations", "events"):
        found[name] = [each | {"owner": owner["name"]} for owner in group["owners"] for each in owner[name]]
    found["events"].sort(key=lambda each: each["time_seconds"], reverse=True)
    return {name: entries[:most] for name, entries in found.items()}
