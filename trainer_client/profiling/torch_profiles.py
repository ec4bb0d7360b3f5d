"""Adds the requests of a thread, and what owners ran for them, to the profile of torch that ends in the thread.

Torch's profilers have no interface for events of other processes. So the ends of `torch.autograd.profiler.profile`,
which `torch.profiler.profile` uses, and of its predecessor `torch.autograd.profiler_legacy.profile` are wrapped: the
list `function_events` of a profile gets further events of torch's own class, and a trace that is exported gets them,
too. A profile during which no request was made is left as torch makes it.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from torch.autograd import profiler, profiler_legacy
from torch.autograd.profiler_util import EventList, FunctionEvent

from ps_wire.profiling import events, ranges
from ps_wire.profiling.events import REMOTE, Event
from trainer_client.profiling import chrome_trace

if TYPE_CHECKING:
    from ps_wire.profiling.ranges import Range

_log = logging.getLogger(__name__)

_BEGAN: Final = "_ps_began_ns"
"""Attribute of a profile of the predecessor: when it began, in nanoseconds since 1970."""


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
        export = functools.partial(
            chrome_trace.export, profile.export_chrome_trace, [each for of in answered for each in of]
        )
        profile.export_chrome_trace = export
        if profile.experimental_config.trace_only:
            return  # it has no list of events
    found = profile.function_events
    for of_request in answered:
        found.extend(_nested([_function_event(each, profile, began_ns, results is None) for each in of_request]))
    found.sort(key=_place)


def _nested(made: list[FunctionEvent]) -> list[FunctionEvent]:
    """The events of one request, each remote event linked with the one that it ran in."""
    tree = EventList(made)
    tree._build_tree()
    return list(tree)


def _function_event(event: Event, profile: Any, began_ns: int, is_legacy: bool) -> FunctionEvent:
    start = (event.start_ns - began_ns) / 1000
    made = FunctionEvent(
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
    return made


_place: Final[Callable[[FunctionEvent], Any]] = attrgetter("time_range.start")
