"""Tests that every lock that a compute thread may wait for reports the wait, or is held for microseconds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("ps_service", "trainer_client", "ps_wire", "ps_reader")
KINDS = ("Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier", "Event")

SHORT = "its holder never waits"
NO_THREAD = "no compute thread waits for it"
NO_WORK = "a compute thread waits for it only while it has no work"
REPORTED = "the waiting thread reports it"
BACKWARD = "waited for in the thread of a backward, for which a compute thread waits and reports it"

PLAIN = {
    "ps_wire/codec/sources.py": SHORT,
    "ps_wire/connections/buffers.py": SHORT,
    "ps_wire/numerics/operators.py": SHORT,
    "ps_wire/numerics/vector_functions.py": SHORT,
    "ps_wire/runtime/latency.py": SHORT,
    "ps_wire/runtime/locks.py": REPORTED,
    "ps_wire/runtime/scopes.py": SHORT,
    "ps_reader/reader.py": NO_THREAD,
    "ps_service/cli/serving.py": NO_THREAD,
    "ps_service/collectives/communicators.py": SHORT,
    "ps_service/passes/calls.py": SHORT,
    "ps_service/ray/owner_process.py": NO_THREAD,
    "ps_service/ray/supervision.py": NO_THREAD,
    "ps_service/durability/log/owners_log.py": SHORT,
    "ps_service/durability/log/log.py": SHORT,
    "ps_service/durability/log/segments.py": NO_THREAD,
    "ps_service/execution/thread_pool.py": SHORT,
    "ps_service/execution/workers.py": NO_WORK,
    "ps_service/requests/context.py": SHORT,
    "ps_service/requests/execution.py": SHORT,
    "ps_service/server.py": NO_THREAD,
    "ps_service/parameters/locks.py": REPORTED,
    "ps_service/passes/contexts.py": SHORT,
    "ps_service/passes/pass_context.py": SHORT,
    "ps_service/passes/runs.py": SHORT,
    "ps_service/measures/curves.py": SHORT,
    "ps_service/measures/events.py": SHORT,
    "ps_service/quotas/quotas.py": SHORT,
    "ps_service/measures/pace.py": SHORT,
    "ps_service/metrics/counters.py": SHORT,
    "ps_service/group/directory.py": SHORT,
    "ps_service/memory/held.py": SHORT,
    "ps_service/hosting/running_statistics.py": SHORT,
    "ps_service/hosting/value_graphs.py": SHORT,
    "ps_service/hosting/registry.py": SHORT,
    "ps_service/passes/staleness.py": SHORT,
    "ps_service/tables/reservation.py": SHORT,
    "ps_service/training/prepared.py": SHORT,
    "ps_service/training/restored_rounds.py": SHORT,
    "ps_service/training/event_queue.py": SHORT,
    "ps_service/training/following.py": SHORT,
    "ps_service/training/memberships.py": SHORT,
    "ps_service/training/reported_values.py": SHORT,
    "trainer_client/contexts/backwards.py": BACKWARD,
    "trainer_client/contexts/context.py": SHORT,
    "trainer_client/session/runs.py": SHORT,
    "trainer_client/graph/running_backward.py": SHORT,
    "trainer_client/graph/leaves.py": BACKWARD,
    "trainer_client/graph/current.py": SHORT,
    "trainer_client/pending.py": REPORTED,
    "trainer_client/client/portal.py": NO_THREAD,
    "trainer_client/local_owners.py": SHORT,
    "trainer_client/rpc/agent.py": SHORT,
    "trainer_client/rpc/completions.py": NO_WORK,
    "trainer_client/rpc/futures.py": SHORT,
    "trainer_client/rpc/joining.py": NO_THREAD,
}
"""Files that make locks of the standard library, and why that is all right. Anything else takes a `ReportingLock`."""


def _with_locks() -> Iterator[str]:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text("utf-8")
            for node in ast.walk(ast.parse(text)) if "threading." in text else ():
                if isinstance(node, ast.Call) and ast.unparse(node.func) in [f"threading.{kind}" for kind in KINDS]:
                    yield str(path.relative_to(ROOT))


def test_every_lock_of_the_standard_library_is_accounted_for() -> None:
    assert set(_with_locks()) == set(PLAIN)
