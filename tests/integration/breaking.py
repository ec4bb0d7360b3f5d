"""Streams that break once, at a certain packet, and what the same job gives with them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from ps_wire.connections.frames import Packet
from trainer_client.transport.faulty import Direction, Fault, Plan

FAULTS = (Fault.CUT, Fault.CUT_AFTER, Fault.TWICE)

OWN_ACCORD = ("confirm", "release", "part", "waiting", "cancel", "status", "step", "end_context")
"""Kinds of packets that are sent, or not, as the turns of the event loop and of threads come.

A step and the end of a pass may be a part of the request of a backward.
"""


@dataclass
class BreakOnce:
    """A plan with one fault, at one packet."""

    fault: Fault
    direction: Direction
    index: int
    hit: bool = field(default=False, init=False)

    def __call__(self, direction: Direction, index: int, packet: Packet) -> Fault:
        if self.hit or direction is not self.direction or index != self.index:
            return Fault.NONE
        self.hit = True
        return self.fault


def no_fault(direction: Direction, index: int, packet: Packet) -> Fault:
    return Fault.NONE


class Place(NamedTuple):
    """A packet of a job: after `earlier` ones of its kind."""

    direction: Direction
    kind: str
    earlier: int


class Found:
    """A plan without faults, which finds the packets of a job."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[Direction, str]] = Counter()

    def __call__(self, direction: Direction, index: int, packet: Packet) -> Fault:
        self._counts[direction, kind(packet)] += 1
        return Fault.NONE

    def places(self, kinds: Sequence[str] = (), last: bool = False) -> list[Place]:
        """The first packet of every kind, or of these kinds, and with `last` the last one."""
        assert {kind for _, kind in self._counts} >= set(kinds)
        return [
            Place(direction, kind, earlier)
            for (direction, kind), count in self._counts.items()
            if not kinds or kind in kinds
            for earlier in (sorted({0, count - 1}) if last else [0])
        ]


@dataclass
class BreakAt:
    """A plan with one fault, at one place."""

    fault: Fault
    place: Place
    hit: bool = field(default=False, init=False)
    _seen: int = field(default=0, init=False, repr=False)

    def __call__(self, direction: Direction, index: int, packet: Packet) -> Fault:
        if self.hit or (direction, kind(packet)) != self.place[:2]:
            return Fault.NONE
        self.hit = self._seen == self.place.earlier
        self._seen += 1
        return self.fault if self.hit else Fault.NONE


def for_each(cases: Mapping[str, Any], twice: Sequence[str] = ()) -> pytest.MarkDecorator:
    """The parameters `policy` and `fault` of a test: every case with requests that run without being answered, which is
    the hardest, and these with requests that arrive twice. `test_retries.py` has every fault of every packet: what is
    sent again is told apart before anybody looks at what it asks for.
    """
    chosen = [*((name, Fault.CUT_AFTER) for name in cases), *((name, Fault.TWICE) for name in twice)]
    values = [pytest.param(cases[name], fault, id=f"{name}-{fault.name}") for name, fault in chosen]
    return pytest.mark.parametrize(("policy", "fault"), values)


async def same_wherever_it_breaks(
    job: Callable[[Plan], Awaitable[Any]],
    fault: Fault,
    direction: Direction | None = None,
    kinds: Sequence[str] = (),
) -> None:
    """Asserts that a job has the same result wherever its stream breaks.

    Args:
        job: Runs with a plan of faults, and returns what is to be the same.
        fault: What happens to one packet.
        direction: Of the packets; None for both.
        kinds: Of the packets, of which the first breaks; none for every kind. With a request that runs without being
            answered, which is the hardest, the last packet of every kind breaks, too.
    """
    assert isinstance(fault, Fault), "anything else would break nothing"
    found = Found()
    expected = await job(found)
    last = not kinds and fault is Fault.CUT_AFTER
    places = [place for place in found.places(kinds, last) if direction in (None, place.direction)]
    plans = [BreakAt(fault, place) for place in places]
    for plan, result in zip(plans, await asyncio.gather(*map(job, plans)), strict=True):
        assert result == expected, plan
    first = [plan for plan in plans if not plan.place.earlier and (kinds or plan.place.kind not in OWN_ACCORD)]
    missed = [plan.place for plan in first if not plan.hit]
    assert first and not missed, missed


def kind(packet: Packet) -> str:
    """What a packet is: of a request or an answer its operation, with the method that a request calls."""
    frame = packet.frame
    match body := frame.WhichOneof("body"):
        case "request":
            operation = str(frame.request.WhichOneof("operation"))
            return f"call {frame.request.call.method}" if operation == "call" else operation
        case "reply":
            return str(frame.reply.WhichOneof("outcome"))
        case _:
            return str(body)
