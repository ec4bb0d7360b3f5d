"""The changes of the rows of tables in the log."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Self

from ps_service.tables.optimizer import RowOptimizer
from ps_service.tables.row_changes import RowChange
from ps_service.tables.stand_in import AllRows, groups_of
from ps_wire.codec.payload import PayloadWriter
from ps_wire.codec.values import Encoder
from ps_wire.v1 import checkpoint_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ps_service.durability.log.storage import RecordSource
    from ps_service.engine import Engine
    from ps_service.hosting.objects import HostedObject
    from ps_service.tables.kernels import Grouped
    from ps_service.tables.shard import TableShard
    from ps_service.training.optimizers import HostedOptimizer, Present
    from ps_wire.runtime.locks import ReportingLock

Append = Callable[[pb.LogRecord, PayloadWriter], int]
"""Appends a record to the log, or later if it cannot be now, which is a `StorageError`. Returns the position behind."""


class TableLog:
    """As `RowLog`, of one table. Its changes are records of their own, or belong to that of the request that `has` the
    rows for itself. `position` is the one behind the last record of its own."""

    def __init__(self, object_id: str, check: Callable[[int], None], append: Append) -> None:
        self._object_id = object_id
        self._append = append
        self._record, self._payload = pb.LogRecord(), PayloadWriter()
        self._of_request: tuple[pb.LogRecord, PayloadWriter] | None = None
        self.check = check
        self.position = 0

    def note(self, change: RowChange) -> None:
        """As `RowLog.note`."""
        record, payload = self._of_request or (self._record, self._payload)
        add(record, payload, self._object_id, change)

    def telling(self) -> Self:
        """As `RowLog.telling`."""
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        if self._record.effects:
            record, payload = self._record, self._payload
            self._record, self._payload = pb.LogRecord(), PayloadWriter()
            self.position = self._append(record, payload)

    def lend(self, record: pb.LogRecord, payload: PayloadWriter) -> None:
        """Has changes belong to the record of a request, until `end`."""
        self._of_request = record, payload

    def end(self) -> None:
        """Has changes be records of their own again."""
        self._of_request = None


class RequestRows:
    """What one request does with the rows of tables, for its record. Who changes rows has the turn of the owner, and is
    the only one that waits for the lock of a table while it has that of another. Steps are written as the rows that
    result where `needs_images` says so."""

    def __init__(
        self,
        logs: Mapping[HostedObject, TableLog],
        record: pb.LogRecord,
        payload: PayloadWriter,
        needs_images: Callable[[], bool],
    ) -> None:
        self._logs = logs
        self._needs_images = needs_images
        self._record, self._payload = record, payload
        self._locks: list[ReportingLock] = []
        # With the number of the last restore, the routing, the steps of others, and the arrivals, that each had before.
        self._changed: list[tuple[HostedObject, int, tuple[Any, ...]]] = []
        self._used: list[HostedObject] = []
        self._stepped: list[tuple[str, TableShard, Grouped]] = []

    def lock(self, shard: TableShard) -> None:
        """Keeps others from the rows of a table until the record is appended."""
        shard.lock.acquire()
        self._locks.append(shard.lock)

    def changes(self, table: HostedObject) -> None:
        """The request changes rows of a table, and nobody else does so before its record is appended."""
        self.lock(table.value.shard)
        self._changed.append((table, table.value.restores.latest, _ownership(table)))
        self._logs[table].lend(self._record, self._payload)

    def uses(self, table: HostedObject) -> None:
        """The request looks up rows, which may add some: its answer must not outlive them."""
        self._used.append(table)

    def steps(self, present: Sequence[Present]) -> None:
        """The rows of these gradients are updated."""
        for covered, _, gradient in present:
            parameter = covered.parameter
            if isinstance(parameter, AllRows):
                self._stepped.append((covered.ref.object_id, parameter.table.shard, groups_of(gradient)))

    def finish(self) -> None:
        """Adds what is known only now: the steps of rows, or the rows as they are. Others may have removed some since,
        and their records came first; nothing comes between what is read here and the record."""
        # Rows that were stepped twice have become both by now.
        needs_images = self._needs_images() or len({of for of, _, _ in self._stepped}) < len(self._stepped)
        # In an order that all requests have.
        for object_id, shard, gradients in sorted(self._stepped, key=itemgetter(0)):
            self.lock(shard)
            stepped = None if needs_images else shard.steps.change(gradients)
            change = shard.images(gradients.ids) if stepped is None else stepped
            if len(change.values["ids"]):
                add(self._record, self._payload, object_id, change)
        for table, restore, before in self._changed:
            if table.value.restores.latest != restore:
                effect = self._record.effects.add().rows
                effect.object_id, effect.restore = table.ref.object_id, table.value.restores.latest
            if any(now is not then for now, then in zip(_ownership(table), before, strict=True)):
                effect = self._record.effects.add().rows
                effect.object_id = table.ref.object_id
                Encoder(self._payload).encode_into(effect.routing, table.value.ownership())

    @property
    def used(self) -> Sequence[HostedObject]:
        """The tables whose rows were looked up."""
        return self._used

    @property
    def position(self) -> int:
        """The position in the log behind the changes that look-ups of the request have made."""
        return max((self._logs[each].position for each in self._used), default=0)

    def end(self) -> None:
        """Lets others change the rows."""
        for table, _, _ in self._changed:
            self._logs[table].end()
        self._changed.clear()
        while self._locks:
            self._locks.pop().release()


def _ownership(table: HostedObject) -> tuple[Any, ...]:
    return table.value.routing, table.value.applied, table.value.arrivals


def add(record: pb.LogRecord, payload: PayloadWriter, object_id: str, change: RowChange) -> None:
    """Adds a change of the rows of a table to a record."""
    effect = record.effects.add().rows
    effect.object_id, effect.time = object_id, change.time
    Encoder(payload).encode_into(getattr(effect, change.kind), dict(change.values))


def record_bytes(optimizer: HostedOptimizer, nbytes: int) -> int:
    """At most the bytes that the log gets of a step with so many bytes of gradients: of tables the rows that result, if
    it does not get less."""
    factors = [1.0]
    for parameter in optimizer.parameters:
        if isinstance(parameter, AllRows):
            shard = parameter.table.shard
            factors.append((8 + shard.row_bytes) / (8 + 4 * shard.dim))
    return int(nbytes * max(factors)) + 1


def is_of_rows(optimizer: HostedOptimizer) -> bool:
    """Whether an optimizer is one of tables: their rows have effects of their own, so that its steps are only
    counted."""
    return isinstance(optimizer.optimizer, RowOptimizer)


def redo_step(optimizer: HostedOptimizer, version: int, places: Sequence[int]) -> None:
    """Counts a step of the optimizer of tables."""
    optimizer.version = version
    for place in places:
        optimizer.parameter_states[place].steps += 1


def redo(engine: Engine, effect: pb.RowsEffect, source: RecordSource) -> None:
    """Makes a change again. Those of a table that is not there are in the state that it is made with later, or it was
    deleted."""
    hosted = engine.registry.get(effect.object_id)
    if hosted is None:
        return
    table: Any = hosted.value
    kind = effect.WhichOneof("change")
    if kind == "restore":
        table.restores.latest = effect.restore
    elif kind == "routing":
        own = table.routing.slots(table.owner)
        table.take_ownership(source.load(effect.routing))
        table.note_applied(own, partial(engine.applied_to, table.parameter, forget=True))
    elif kind is not None:
        table.shard.redo(RowChange(kind, effect.time, source.load(getattr(effect, kind))))
