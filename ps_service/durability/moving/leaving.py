"""Objects that leave this owner."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any, Final

from ps_service.durability.log.storage import RecordStorage
from ps_service.durability.moving.contents import Contents
from ps_service.durability.moving.groups import group_of, parameters_of
from ps_service.durability.object_records import object_record
from ps_service.durability.object_states import CannotBeKept, live_state_of
from ps_service.durability.run_records import runs_of
from ps_service.requests.moving import pass_of
from ps_service.training.no_steps import no_steps
from ps_wire.codec.messages import messages_in
from ps_wire.codec.payload import PayloadWriter
from ps_wire.errors import InvalidArgumentError, ObjectMovedError, StaleHandleError, UnknownNameError
from ps_wire.runtime.locks import ReportingLock
from ps_wire.v1 import checkpoint_pb2 as pb
from ps_wire.v1.values_pb2 import Handle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ps_service.engine import Engine

LONGEST_CLOSED: Final = 10.0
"""The most seconds for which objects may be closed."""

_PATIENCE_SECONDS: Final = 5.0
"""Seconds to wait for steps, and for hosted code that holds what has to be read."""

_LOST: Final = "the object that it used has moved to another owner; the move has waited for it in vain"
"""Why a pass is lost."""


class Leaving:
    """Objects that are about to leave. They are closed until a moment on the monotonic clock. It is `quiet` if nothing
    has used them since, and `is_read` if their contents were looked at since then. `used` is when the move was last
    heard of, on the same clock."""

    def __init__(self, engine: Engine, names: Iterable[str], to: str) -> None:
        self._engine = engine
        self._lock = ReportingLock()
        self.group = group_of(engine, names)
        self.objects = {each.ref.object_id: each.name for each in self.group}
        self.to = to
        # Of two moves of the same objects, the later one has the larger id.
        self.move = f"{time.time_ns():020d}-{secrets.token_hex(8)}"
        self.contents = Contents()
        self.used, self.closed_until = time.monotonic(), 0.0
        self.quiet = self.is_read = False
        self._parameters = parameters_of(self.group)

    def read(self, again: bool, nbytes: int) -> tuple[bytes, int, list[int], Any, int]:
        """Some of the contents: the records, the bytes of all, numbers of blocks, these, and how many bytes are left.
        Raises `StillBusy`, `InvalidArgumentError` if something cannot be read, or cannot move any more, and
        `StaleHandleError` if other objects move together now."""
        with self._lock:
            if again:
                if was_quiet := self.quiet:
                    self._look_for_more()  # nobody makes anything from them from now on
                self._look()
                self.is_read = was_quiet
            blocks, found = self.contents.take(nbytes)
            return self.contents.records, len(self.contents.bytes), blocks, found, self.contents.left

    def _look_for_more(self) -> None:
        """Raises `StaleHandleError` if other objects move together now than when this began, and `InvalidArgumentError`
        if they cannot move any more."""
        try:
            group = group_of(self._engine, self.objects.values())
        except UnknownNameError:
            group = []  # one was deleted
        if self.objects.keys() != {each.ref.object_id for each in group}:
            what = ", ".join(map(repr, self.objects.values()))
            raise StaleHandleError(f"other objects belong to {what} than when this move began; begin it again")

    def _look(self) -> None:
        engine, payload, records = self._engine, PayloadWriter(), pb.MovedRecords()
        until = time.monotonic() + _PATIENCE_SECONDS
        with no_steps(self.group, _PATIENCE_SECONDS):
            for each in self.group:
                try:
                    record = object_record(
                        each,
                        RecordStorage(payload),
                        lambda hosted: live_state_of(engine, until, hosted),
                        lambda other: other.ref.object_id in self.objects,
                    )
                except CannotBeKept as error:
                    raise InvalidArgumentError(f"{each} cannot move to another owner: {error}") from None
                record.ClearField("rounds")  # trainers join with their next step
                records.objects.append(record)
            records.runs.extend(runs_of(engine, self.group))
            for handle in messages_in(records, Handle):
                handle.owner = self.to
            self.contents.update(records.SerializeToString(), payload.chunks, payload.nbytes)

    def close(self, seconds: float) -> None:
        """Has requests that would begin to use the objects wait for some seconds."""
        if not 0 < seconds <= LONGEST_CLOSED:
            raise InvalidArgumentError(f"objects are closed for at most {LONGEST_CLOSED:g} seconds, not {seconds!r}")
        self.quiet = self.is_read = False
        self.closed_until = time.monotonic() + seconds
        self._engine.moves.held.update(dict.fromkeys(self.objects, self))

    def reopen(self) -> None:
        """Lets requests use them again."""
        self.quiet = self.is_read = False
        held = self._engine.moves.held
        for object_id in self.objects:
            if held.get(object_id) is self:
                del held[object_id]

    @property
    def is_closed(self) -> bool:
        """Whether they are closed now."""
        return time.monotonic() < self.closed_until

    def check(self, request: Any, object_id: str) -> None:
        """As `Held.check`. A pass that has used them goes on."""
        if not self.is_closed:
            self.reopen()
            return
        id = pass_of(request)
        used_in = None if id is None else self._engine.contexts.get(id)
        if used_in is None or not used_in.uses_any(self._parameters):
            name = self.objects[object_id]
            raise ObjectMovedError(f"{name!r} is about to move to owner {self.to!r}", "", "", object_id)

    def look_for_use(self, lose: bool) -> bool:
        """Whether nothing has used the objects since they were closed: no open pass, no step that was prepared, and no
        request that runs. Passes that do are lost if it is to `lose` them, but for those whose steps were prepared."""
        engine = self._engine
        prepared = {id for id, object_id, _ in engine.prepared.all() if object_id in self.objects}
        using = [each.id for each in engine.contexts.all() if each.uses_any(self._parameters)]
        if lose:
            for id in using:
                if id not in prepared and engine.contexts.lose(id, _LOST):
                    engine.events.note("pass_ended", f"context {id} was ended: {_LOST}", "warning", subject=str(id))
        running = (each.request for each in engine.requests.running())
        is_used = bool(prepared) or (bool(using) and not lose) or any(map(self._names, running))
        self.quiet = not is_used and self.is_closed
        return self.quiet

    def _names(self, request: Any) -> bool:
        return any(handle.object_id in self.objects for handle in messages_in(request, Handle))

    def may_be_released(self) -> bool:
        """Whether they are as they were read, and nothing uses them."""
        registry = self._engine.registry
        is_there = all(registry.get(each.ref.object_id) is each for each in self.group)
        return self.quiet and self.is_read and not self.contents.left and self.is_closed and is_there
