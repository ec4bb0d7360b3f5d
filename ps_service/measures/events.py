"""What has happened on an owner: the latest events, for status and page, each of them in the log as well."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal

from ps_wire.status.parts import EventStatus

if TYPE_CHECKING:
    from ps_service.measures.audit_log import AuditLog

_log = logging.getLogger("ps_service.events")

MOST_EVENTS: Final = 1000
"""Events that are kept; older ones are only in the log."""

_MOST_ALIKE: Final = 1024
"""Kinds of repeated events that are told apart; the one that has not happened for the longest time is forgotten."""

_LONGEST_TRACEBACK: Final = 8 * 1024
"""Most characters of a traceback that an event keeps: its end, because the last lines say most."""

_LONGEST_TEXT: Final = 1024
"""Most characters of a text."""

Level = Literal["info", "warning", "error"]
"""How grave an event is."""

_LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

KINDS: Final = {
    "joined": "a trainer has connected for the first time",
    "away": "the connection of a trainer broke; its session lives on until its lease runs out",
    "back": "such a trainer has connected again",
    "left": "a trainer has ended its session",
    "lost": "the lease of a trainer has run out, or it came back without its session",
    "ended": "an operator has ended the session of a trainer",
    "made": "a named object was made",
    "deleted": "a named object was deleted",
    "moved": "named objects or slots of a table have moved to another owner, or have come from one",
    "raised": "a hosted method, function or constructor raised an exception; the first has its traceback",
    "slow": "a request took longer than `slow_call_seconds`",
    "loaded": "the state of an object was replaced, or all rows of a table were removed, maybe to be restored",
    "policy": "an optimizer has got another policy",
    "refused": "a connection was refused, or a request for want of a token or a role",
    "tokens": "the token file was read again, after it had changed",
    "pass_ended": "the owner or an operator has ended a pass",
    "restored": "the owner has continued from a checkpoint",
    "replaced": "a later start of the state of an owner has taken its place",
    "gone_back": "an owner has an older state than other owners of an optimizer know of",
    "checkpoint": "a checkpoint was written; as an error: one could not be",
    "log": "the log can be written again; as an error: it cannot be, and nothing can change",
    "started": "the owner serves",
    "draining": "the owner takes no new work",
    "drained": "the owner has finished its work",
}
"""The kinds of events, and what each of them says."""

_NOT_AUDITED: Final = {"away", "raised", "slow", "log"}
"""Kinds that say how things go, and not who did what. Texts of exceptions could have values in them."""


class Events:
    """The latest events of an owner. Safe from several threads. The clock tells Unix time, in seconds. The `audit` log,
    if there is one, gets those that say who did what."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.audit: AuditLog | None = None
        self._clock = clock
        self._lock = threading.Lock()
        self._latest: deque[EventStatus] = deque(maxlen=MOST_EVENTS)
        self._number = 0
        self._alike: OrderedDict[Hashable, int] = OrderedDict()

    @property
    def last(self) -> int:
        """The number of the latest event; 0 if there was none."""
        return self._number

    def latest(self, most: int = MOST_EVENTS, after: int = 0) -> list[EventStatus]:
        """The latest events, at most so many and only those with larger numbers, in the order of their numbers."""
        with self._lock:
            found = [each for each in islice(reversed(self._latest), max(most, 0)) if each.number > after]
        return found[::-1]

    def note(
        self,
        kind: str,
        text: str,
        level: Level = "info",
        *,
        trainer: str = "",
        subject: str = "",
        traceback: str = "",
        alike: Hashable = None,
        by: Mapping[str, str] | None = None,
    ) -> None:
        """Keeps an event, and logs it. The arguments are those of `EventStatus`; who has done it, `by`, is only for the
        audit log, which has limits of its own.

        An event that may happen often is kept the first time that it is `alike`, and then the tenth, the hundredth and
        so on. Only the first has its traceback.
        """
        # Exceptions and names come from trainers, and could change a terminal, or begin a line of their own.
        text = "".join(each if each.isprintable() else " " for each in text)
        if self.audit is not None and kind not in _NOT_AUDITED:
            self.audit.note(kind, level, text, trainer=trainer, subject=subject, **(by or {}))
        count = 1 if alike is None else self._count(alike)
        if str(count).strip("0") != "1":
            return
        if count > 1:
            text, traceback = f"{text} (this has happened {count:,} times)", ""
        traceback = "".join(each if each.isprintable() or each == "\n" else "?" for each in traceback)
        with self._lock:
            self._number += 1
            event = EventStatus(
                self._number,
                self._clock(),
                kind,
                level,
                text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 2]} …",
                trainer,
                subject,
                count,
                traceback if len(traceback) <= _LONGEST_TRACEBACK else f"… {traceback[-_LONGEST_TRACEBACK + 2 :]}",
            )
            self._latest.append(event)
        _tell(event, text, traceback)

    def _count(self, alike: Hashable) -> int:
        """How often such an event has happened, with this time."""
        with self._lock:
            count = self._alike[alike] = self._alike.pop(alike, 0) + 1
            if len(self._alike) > _MOST_ALIKE:
                self._alike.popitem(last=False)
            return count


def _tell(event: EventStatus, text: str, traceback: str) -> None:
    level = _LEVELS[event.level]
    if not _log.isEnabledFor(level):
        return
    fields = {
        "kind": event.kind,
        "number": event.number,
        "trainer": event.trainer,
        "subject": event.subject,
        "count": event.count if event.count > 1 else 0,
        "traceback": traceback,
    }
    told = {name: value for name, value in fields.items() if value}
    record = _log.makeRecord(_log.name, level, "", 0, "%s", (text,), None, "note", told)
    # What formatters print behind the text. The exception itself would keep the tensors of its frames.
    record.exc_text = traceback.rstrip("\n") or None
    _log.handle(record)
