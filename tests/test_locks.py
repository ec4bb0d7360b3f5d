"""Locks: each one that a compute thread may have to wait for either reports the wait or is held for microseconds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("ps_service", "trainer_client", "proto/ps_wire")
KINDS = ("Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier", "Event")

SHORT = "its holder never waits"
NO_THREAD = "no compute thread waits for it"
REPORTED = "whoever waits for it reports that"
BACKWARD = "waited for in the thread of a backward, for which a compute thread waits and reports it"

PLAIN = {
    "proto/ps_wire/buffers.py": SHORT,
    "proto/ps_wire/locks.py": REPORTED,
    "proto/ps_wire/scopes.py": SHORT,
    "proto/ps_wire/seeds.py": SHORT,
    "ps_service/cli.py": NO_THREAD,
    "ps_service/engine/calling.py": SHORT,
    "ps_service/engine/compute.py": SHORT,
    "ps_service/rpc/exchange.py": SHORT,
    "ps_service/rpc/jobs.py": SHORT,
    "ps_service/server.py": NO_THREAD,
    "ps_service/state/cells.py": REPORTED,
    "ps_service/state/contexts.py": SHORT,
    "ps_service/state/counters.py": SHORT,
    "ps_service/state/directory.py": SHORT,
    "ps_service/state/held.py": SHORT,
    "ps_service/state/internals.py": SHORT,
    "ps_service/state/registry.py": SHORT,
    "ps_service/state/steps.py": SHORT,
    "trainer_client/context.py": SHORT,
    "trainer_client/graph.py": BACKWARD,
    "trainer_client/numerics.py": SHORT,
    "trainer_client/openings.py": SHORT,
    "trainer_client/passes.py": BACKWARD,
    "trainer_client/pending.py": REPORTED,
    "trainer_client/portal.py": NO_THREAD,
    "trainer_client/rpc/agent.py": SHORT,
    "trainer_client/rpc/futures.py": SHORT,
    "trainer_client/rpc/group.py": SHORT,
    "trainer_client/rpc/lifecycle.py": NO_THREAD,
}
"""Files that make locks of the standard library, and why that is all right. Anything else takes a `ReportingLock`."""


def _with_locks() -> Iterator[str]:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in [f"threading.{kind}" for kind in KINDS]:
                    yield str(path.relative_to(ROOT))


def test_every_lock_of_the_standard_library_is_accounted_for() -> None:
    assert set(_with_locks()) == set(PLAIN)
