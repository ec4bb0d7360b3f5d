"""Adds the requests of a thread, and what owners ran for them, to the profile of torch that ends in the thread.

Torch's profilers have no interface for events of other processes. So the ends of `torch.autograd.profiler.profile`,
which `torch.profiler.profile` uses, and of its predecessor `torch.autograd.profiler_legacy.profile` are wrapped: the
list `function_events` of a profile gets further events of torch's own class, and a trace that is exported gets them,
too. A profile during which no request was made is left as torch makes it.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from torch.autograd import profiler, profiler_legacy
from torch.autograd.profiler_util import EventList, FunctionEvent

from ps_wire.profiling import events, ranges
from ps_wire.profiling.events import REMOTE, Event

if TYPE_CHECKING:
    from ps_wire.profiling.ranges import Range

_log = logging.getLogger(__name__)

_BEGAN: Final = "_ps_began_ns"
"""Attribute of a profile of the predecessor: when it began, in nanoseconds since 1970."""

_FIRST_LANE: Final = 1_000_000_000
"""First number of the rows with requests, beyond the numbers of threads."""

_FIRST_PROCESS: Final = 1_000_000_000
"""First number of the owners, beyond the numbers of processes of this host."""

_OWNER: Final = re.compile(r" -> ([^()]*)\)$")
"""Finds the owner that a request was sent to in the request's name."""


def install() -> None:
    """Wraps the ends of torch's profiles. Does nothing the second time."""
    for profile in (profiler.profile, profiler_legacy.profile):
        if not hasattr(profile.__exit__, "__wrapped__"):
            _wrap(profile)


def _wrap(profile: Any) -> None:
    enter, leave = profile.__enter__, profile.__exit__

    @functools.wraps(enter)
    def entered(self: Any) -> Any:
        made = enter(self)
        setattr(self, _BEGAN, time.time_ns())
        return made

    @functools.wraps(leave)
    def left(self: Any, *error: Any) -> Any:
        made = ranges.take()
        result = leave(self, *error)
        if made and self.enabled:
            _add(self, made)
        return result

    profile.__enter__, profile.__exit__ = entered, left


def _add(profile: Any, made: Sequence[Range]) -> None:
    """Adds requests to a profile that has just ended."""
    results = getattr(profile, "kineto_results", None)
    began_ns = getattr(profile, _BEGAN, 0) if results is None else results.trace_start_ns()
    for each in made:
        if each.profile is not None and each.profile.left_out:
            _log.warning("%s: %d remote events are left out of the profile", each.key, each.profile.left_out)
    answered = [list(events.of_range(each)) for each in made if each.ended_ns]
    if results is not None:
        export = functools.partial(write_trace, profile.export_chrome_trace, [each for of in answered for each in of])
        profile.export_chrome_trace = export
        if profile.experimental_config.trace_only:
            return  # it has no list of events
    found = profile.function_events
    for of_request in answered:
        tree = EventList([_function_event(each, profile, began_ns, results is None) for each in of_request])
        # Links each remote event with the one that it ran in.
        tree._build_tree()
        found.extend(tree)
    found.sort(key=attrgetter("time_range.start"))


def _function_event(event: Event, profile: Any, began_ns: int, is_legacy: bool) -> FunctionEvent:
    start = (event.start_ns - began_ns) / 1000
    return FunctionEvent(
        id=0,
        name=event.name,
        trace_name=event.name,
        thread=event.thread,
        start_us=start,
        end_us=start + event.duration_ns / 1000,
        input_shapes=event.shapes if profile.record_shapes else [],
        concrete_inputs=[],
        kwinputs={},
        stack=[],
        cpu_memory_usage=event.memory_bytes if profile.profile_memory else 0,
        is_async=event.asynchronous,
        is_remote=REMOTE in event.name,
        node_id=event.node if event.node is not None else -1,
        is_legacy=is_legacy,
    )


def write_trace(
    save: Callable[..., Any], events: Sequence[Event], path: str | os.PathLike[str], *args: Any, **kwargs: Any
) -> Any:
    """Saves a trace with `save`, and adds events to it, each request before what owners ran for it."""
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
            key = _OWNER.search(where)
            owner = where if key is None else key[1]
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


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}
