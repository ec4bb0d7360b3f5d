"""The events of a profile: as values, and in messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ps_wire.profiling.ranges import Range
    from ps_wire.v1.probes_pb2 import Profile

REMOTE: Final = "#remote_op: "
"""What stands between the name of a request and that of an event on its owner, as in torch."""

MAX_EVENTS: Final = 2048
"""Most events of one answer."""

MAX_PROFILE_BYTES: Final = 256 * 1024
"""Most bytes of the events of one answer."""

MAX_NAME: Final = 1024
"""Most characters of the name of an event; longer names are cut."""

_MAX_SHAPES: Final = 32
_MAX_DIMENSIONS: Final = 32


class Event(NamedTuple):
    """One event of torch's profiler, or one request: it is asynchronous, and may overlap others of its thread.

    It began `start_ns` after 1970. `node` is the number of its process in the group; None for the process that sends
    it. `memory_bytes` are those that it allocated, less those that it freed, on the CPU. `shapes` has an empty one for
    an argument that is no tensor.
    """

    name: str
    start_ns: int
    duration_ns: int
    thread: int
    node: int | None = None
    memory_bytes: int = 0
    shapes: Sequence[Sequence[int]] = ()
    asynchronous: bool = False


def write(profile: Profile, began_ns: int, ended_ns: int, events: Iterable[Event]) -> None:
    """Writes events, in the order of their beginnings, into a message, as many as its limits allow."""
    profile.began_ns = began_ns
    profile.duration_ns = max(ended_ns - began_ns, 0)
    nbytes = 0
    for event in events:
        if len(profile.events) == MAX_EVENTS or nbytes > MAX_PROFILE_BYTES:
            profile.left_out += 1
            continue
        entry = profile.events.add(
            name=event.name[:MAX_NAME],
            start_ns=max(event.start_ns - began_ns, 0),
            duration_ns=max(event.duration_ns, 0),
            thread=event.thread,
            memory_bytes=event.memory_bytes,
            node=event.node,
            asynchronous=event.asynchronous,
        )
        for shape in event.shapes[:_MAX_SHAPES]:
            entry.shapes.add(sizes=shape[:_MAX_DIMENSIONS])
        nbytes += entry.ByteSize()


def of_range(made: Range) -> Iterator[Event]:
    """The event of a request, and those that its owner sent; nothing if it was not answered."""
    if not made.ended_ns:
        return
    took = made.ended_ns - made.began_ns
    yield Event(made.key, made.began_ns, took, made.thread, made.node, asynchronous=True)
    if made.profile is None:
        return
    offset = _began(made, made.profile)
    for each in islice(made.profile.events, MAX_EVENTS):
        yield Event(
            f"{made.key}{REMOTE}{each.name[:MAX_NAME]}",
            offset + each.start_ns,
            each.duration_ns,
            each.thread,
            each.node if each.HasField("node") else made.owner_node,
            each.memory_bytes,
            [list(shape.sizes) for shape in each.shapes],
            each.asynchronous,
        )


def _began(made: Range, profile: Profile) -> int:
    """When the owner began, by this clock; in the middle of the request if the clocks of two hosts differ too much."""
    began, ended = profile.began_ns, profile.began_ns + profile.duration_ns
    if made.began_ns <= began and ended <= made.ended_ns:
        return began
    return made.began_ns + max((made.ended_ns - made.began_ns - profile.duration_ns) // 2, 0)
