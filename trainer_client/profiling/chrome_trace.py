"""Writes requests, and what owners ran for them, into the chrome trace that Kineto has saved."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from ps_wire.profiling.events import REMOTE, Event

_FIRST_LANE: Final = 1_000_000_000
"""First number of the rows with requests, beyond the numbers of threads."""

_FIRST_PROCESS: Final = 1_000_000_000
"""First number of the owners, beyond the numbers of processes of this host."""

_OWNER: Final = re.compile(r" -> ([^()]*)\)$")


def export(
    save: Callable[..., Any], events: Sequence[Event], path: str | os.PathLike[str], *args: Any, **kwargs: Any
) -> Any:
    """Saves a trace with further events.

    Args:
        save: Saves the trace without them.
        events: The events, each request before what owners ran for it.
        path: The file.
        args, kwargs: Further arguments of `save`.
    """
    result = save(path, *args, **kwargs)
    file = Path(path)
    trace = json.loads(file.read_bytes())
    trace["traceEvents"].extend(_entries(events, trace.get("baseTimeNanoseconds", 0)))
    file.write_text(json.dumps(trace))
    return result


def _entries(events: Iterable[Event], base_ns: int) -> Iterable[dict[str, Any]]:
    """The entries of a chrome trace: one process for each owner, and rows for the requests of this process."""
    owners: dict[str, int] = {}
    free_from: dict[int, list[int]] = {}
    request = 0
    for event in events:
        where, separator, name = event.name.rpartition(REMOTE)
        pid = os.getpid()
        request += not separator
        if separator:
            owner = _owner_of(where)
            if owner not in owners:
                owners[owner] = _FIRST_PROCESS + len(owners)
                yield _named("process_name", owners[owner], 0, owner)
            pid = owners[owner]
        tid = event.thread
        if event.asynchronous:
            lane = _lane(free_from.setdefault(pid, []), event)
            tid = _FIRST_LANE + lane
            yield _named("thread_name", pid, tid, f"requests {lane + 1}")
        args = {
            "request": request,
            "name": event.name,
            "node": event.node,
            "Input Dims": event.shapes,
            "memory bytes": event.memory_bytes,
        }
        yield {
            "ph": "X",
            "cat": "remote_call" if event.asynchronous else "cpu_op",
            "name": name,
            "pid": pid,
            "tid": tid,
            "ts": (event.start_ns - base_ns) / 1000,
            "dur": event.duration_ns / 1000,
            "args": args,
        }


def _lane(free_from: list[int], event: Event) -> int:
    """The first row in which an event overlaps no other."""
    ended = event.start_ns + event.duration_ns
    for lane, free in enumerate(free_from):
        if free <= event.start_ns:
            free_from[lane] = ended
            return lane
    free_from.append(ended)
    return len(free_from) - 1


def _owner_of(key: str) -> str:
    """The owner that a request was sent to, from the request's name."""
    found = _OWNER.search(key)
    return found[1] if found else key


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}
