"""What the owner that serves the page knows of one owner of its group."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from ps_service.metrics.history import KEPT_SAMPLES
from ps_service.monitoring.watched_curve import WatchedCurve

if TYPE_CHECKING:
    from ps_wire.v1.operations_pb2 import Event, HistoryReply, Sample, StatusReply

State = Literal["asked", "serving", "stalled", "draining", "silent", "lost", "left"]
"""`asked`: it has not answered yet. `silent`: it did not answer the last time. `lost`: it does not answer, and the
directory has not let it go. `left`: it drained, or left the directory, before it stopped answering."""

LOST_SECONDS: Final = 3.0
"""An owner that has not answered for so long is lost."""

MOST_EVENTS: Final = 200
"""Events of one owner that a page shows."""

_SAME_SECONDS: Final = 0.5
"""By how much the end of a sample may differ from where the one before and its length put it."""

_NUMBERS: Final = (
    *("received_bytes", "sent_bytes", "connected_sessions", "requests_in_flight", "resident_bytes"),
    *("parameter_bytes", "table_bytes", "request_bytes", "answer_bytes", "context_bytes", "trainer_steps"),
)
"""The last fields of an encoded sample."""

ANSWERING: Final = ("serving", "stalled", "draining")
"""States of owners that answer."""


@dataclass(frozen=True, slots=True)
class WatchedSample:
    """One sample of an owner, which `ended` at a Unix time of this host. It is encoded once, for all pages."""

    ended: float
    message: Sample
    encoded: str


class WatchedOwner:
    """One owner of the group, which is in its state `since` a Unix time, and in the directory if `listed`.

    `why` says why it does not answer. `facts` is its latest answer, without samples and curves, of which `curves` has
    those of the owner by number. `values_left_out` counts reported values that have none. Used on the event loop.
    """

    def __init__(self, name: str, address: str, clock: Callable[[], float] = time.time) -> None:
        self.name = name
        self.address = address
        self.state: State = "asked"
        self.why = ""
        self.facts: HistoryReply | None = None
        self.status: StatusReply | None = None
        self.samples: deque[WatchedSample] = deque(maxlen=KEPT_SAMPLES)
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self.curves: dict[int, WatchedCurve] = {}
        self.values_left_out = 0
        self.listed = True
        self._clock = clock
        self.since = self._answered = clock()

    @property
    def last_number(self) -> int:
        """The number of its latest sample; 0 if there is none."""
        return self.samples[-1].message.number if self.samples else 0

    @property
    def last_event(self) -> int:
        """The number of its latest event; 0 if there is none."""
        return self.events[-1].number if self.events else 0

    def seen(self) -> dict[int, int]:
        """How many values of each curve are known, by its number."""
        return {number: curve.seen for number, curve in self.curves.items()}

    def heard(self, reply: HistoryReply) -> None:
        """It has answered. A reply of another start of it does away with what was known of the earlier one."""
        now = self._answered = self._clock()
        if self.facts is not None and self.facts.incarnation != reply.incarnation:
            self.events.clear()
            self.samples.clear()
            self.curves.clear()
            self.values_left_out = 0
            self.status = None
            self.facts = None
            self._become("asked")
            return
        for sample in reply.samples:
            if sample.number > self.last_number:
                self._add(sample, now)
        del reply.samples[:]
        self._take_curves(reply)
        self.facts = reply
        self._become(next((each for each in ANSWERING if each == reply.state), "serving"))

    def told(self, status: StatusReply) -> None:
        """It has told its status."""
        self.events.extend(each for each in status.events if each.number > self.last_event)
        del status.events[:]
        self.status = status

    def failed(self, why: str) -> None:
        """It has not answered."""
        if self.state == "left":
            return
        if self.state == "draining" or not self.listed:
            self._become("left")
        elif self.state == "lost" or self._clock() - self._answered >= LOST_SECONDS:
            self._become("lost", why)
        elif self.state != "asked":
            self._become("silent", why)

    def _take_curves(self, reply: HistoryReply) -> None:
        for told in reply.curves:
            self.curves.setdefault(told.number, WatchedCurve(told.number)).take(told)
        ended = set(reply.ended_curves)
        self.curves = {number: self.curves[number] for number in reply.curve_numbers if number in self.curves}
        for number, curve in self.curves.items():
            curve.ended = number in ended
        self.values_left_out = reply.curve_values_left_out
        for field in ("curves", "curve_numbers", "ended_curves"):
            reply.ClearField(field)

    def _add(self, sample: Sample, now: float) -> None:
        ended = now - sample.age_seconds
        if self.samples and sample.number == self.last_number + 1:
            # The time on the way differs from answer to answer, and samples follow each other without a gap.
            follows = self.samples[-1].ended + sample.seconds
            ended = follows if abs(follows - ended) < _SAME_SECONDS else ended
        self.samples.append(WatchedSample(ended, sample, encoded(sample, ended)))

    def _become(self, state: State, why: str = "") -> None:
        self.why = why
        if state != self.state:
            self.state, self.since = state, self._clock()


def encoded(sample: Sample, ended: float) -> str:
    """A sample for the page, in JSON: an array, with the order that `static/samples.js` has."""
    return json.dumps(
        [
            sample.number,
            round(ended, 3),
            round(sample.seconds, 3),
            sample.steps,
            list(sample.staleness),
            {each.name: [each.errors, *each.durations] for each in sample.operations},
            *(getattr(sample, name) for name in _NUMBERS),
        ],
        separators=(",", ":"),
    )
