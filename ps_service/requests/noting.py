"""Notes what calls change, for the durable log."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ps_service.hosting.marks import marks_of
from ps_service.hosting.pinned import Pinned
from ps_service.training.schedulers import HostedScheduler
from ps_wire.tables.names import CHANGES_ROWS, EVICT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ps_service.hosting.objects import HostedObject
    from ps_service.sessions.effects import Effects


def rows(effects: Effects, tables: Sequence[HostedObject], method: str, share: Any, recorded: bool) -> None:
    """Notes what a call of the first of some tables does with rows, for which it has the others; `share` is its first
    argument. What expires is removed turn by turn, and that twice changes nothing."""
    if method in CHANGES_ROWS and not (method == EVICT and share is None):
        effects.changes_rows(tables[0])
    elif recorded or method == EVICT:
        for each in tables:
            effects.uses_rows(each)


@contextmanager
def changes(effects: Effects, objects: Iterable[HostedObject]) -> Iterator[None]:
    """Notes which of some objects a block changes. Of objects that are no modules it cannot be told, so they are noted
    in any case; if the log has no room, that is a `StorageError` before the block begins."""
    before, tensors = [], []
    for each in objects:
        if each.is_module:
            before.append((each, marks_of(each)))
        elif each.is_table:
            effects.uses_rows(each)
        elif each.is_tensor:
            if each.history is None and not each.value.is_inference():
                tensors.append((each, each.value._version))
        elif isinstance(each.value, HostedScheduler | Pinned):
            continue
        elif each.has_state or each.creation_spec is None:  # others are not kept
            effects.check(0)
            effects.changes(each, alone=True)
    try:
        yield
    finally:
        for hosted, marks in before:
            now = marks_of(hosted)
            if (now.writes, now.trained, now.extra) != (marks.writes, marks.trained, marks.extra):
                effects.changes(hosted)
            elif not now.same_buffers(marks):
                effects.changes_buffers(hosted)
        for hosted, version in tensors:
            if hosted.value._version != version:
                effects.changes(hosted)
