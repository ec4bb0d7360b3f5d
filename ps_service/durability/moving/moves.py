"""Answers the requests of a program that moves objects."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from ps_service.durability import move_effects as effects
from ps_service.durability.log.storage import RecordSource
from ps_service.durability.moving.contents import Contents
from ps_service.durability.moving.groups import groups, moved_with, refusal
from ps_service.durability.moving.leaving import Leaving
from ps_service.durability.restoring import put
from ps_service.hosting.moved_objects import Arrival
from ps_wire.codec.trees import mapped
from ps_wire.errors import InvalidArgumentError, NameConflictError, StaleHandleError
from ps_wire.runtime.locks import ReportingLock
from ps_wire.v1 import checkpoint_pb2 as pb
from ps_wire.v1 import operations_pb2 as ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ps_service.engine import Engine
    from ps_service.requests.context import RequestContext
    from ps_wire.v1.values_pb2 import Value

_PIECE_BYTES: Final = 16 << 20
"""About the most bytes of contents in one message."""

STAGED_SECONDS: Final = 300.0
"""Seconds after which owners free the contents of a move that nobody goes on with. One that does begins anew."""


class Staged(Contents):
    """Contents that a move has brought, and when it was last heard of, on the monotonic clock."""

    def __init__(self) -> None:
        super().__init__()
        self.used = time.monotonic()


class CopiedTensors(RecordSource):
    """Reads records whose bytes are not kept."""

    def load(self, message: Value, names: Sequence[str] = ()) -> Any:
        """As `Source.load`."""
        return mapped(super().load(message, names), torch.Tensor.clone)


class ObjectMoves:
    """The moves of the objects of an owner that has a log, in either direction. One that nobody goes on with is
    replaced by the next one of the same objects."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = ReportingLock()
        self._leaving: dict[str, Leaving] = {}
        self._staged: dict[str, Staged] = {}

    def serve(self, ctx: RequestContext, request: ops.MoveRequest, reply: ops.MoveReply) -> None:
        """Does a part of a move, as `MoveAction` says."""
        match request.action:
            case ops.MOVE_PLAN:
                self._plan(reply)
            case ops.MOVE_BEGIN:
                self._begin(request, reply)
            case ops.MOVE_READ:
                records, nbytes, blocks, found, reply.left = self._left_by(request).read(request.again, _PIECE_BYTES)
                contents = reply.contents
                contents.records, contents.nbytes = records, nbytes
                contents.blocks.extend(blocks)
                ctx.write(contents.bytes, found)
            case ops.MOVE_CLOSE:
                self._left_by(request).close(request.seconds)
            case ops.MOVE_QUIET:
                reply.done = self._left_by(request).look_for_use(request.lose)
            case ops.MOVE_RELEASE:
                reply.done = self._release(ctx, self._left_by(request))
            case ops.MOVE_REOPEN | ops.MOVE_END:
                reply.done = self._reopen(request)
            case ops.MOVE_STAGE:
                self._stage(ctx, request)
            case ops.MOVE_MAKE:
                self._make(ctx, request)
            case ops.MOVE_ARRIVE:
                self._arrive(ctx, request)
            case ops.MOVE_ACCEPT:
                self._accept(ctx, request, reply)
            case ops.MOVE_DROP:
                self._drop(ctx, request.move)
            case _:
                raise InvalidArgumentError(f"there is no part {request.action} of a move; is the owner older than you?")

    # The source

    def _plan(self, reply: ops.MoveReply) -> None:
        for group in groups(self._engine):
            names = [each.name for each in group if each.name]
            nbytes = sum(each.size[1] for each in group)
            reply.groups.add(names=names, nbytes=nbytes, refusal=refusal(self._engine, group))

    def _begin(self, request: ops.MoveRequest, reply: ops.MoveReply) -> None:
        if not request.owner or request.owner == self._engine.name:
            raise InvalidArgumentError(f"objects move to another owner, by its name, not to {request.owner!r}")
        leaving = Leaving(self._engine, request.names, request.owner)
        with self._lock:
            for move, each in list(self._leaving.items()):
                if not each.objects.keys().isdisjoint(leaving.objects):
                    each.reopen()
                    del self._leaving[move]
            self._leaving[leaving.move] = leaving
        reply.move = leaving.move
        reply.groups.add(names=leaving.objects.values())

    def _left_by(self, request: ops.MoveRequest) -> Leaving:
        leaving = self._leaving.get(request.move)
        if leaving is None:
            raise StaleHandleError(
                f"owner {self._engine.name!r} has ended this move, begun another one of these objects, or started again"
            )
        leaving.used = time.monotonic()
        return leaving

    def _release(self, ctx: RequestContext, leaving: Leaving) -> bool:
        engine = self._engine
        with self._lock:
            if ctx.effects is not None:
                ctx.effects.take_turn()
                ctx.effects.check(0)
            if self._leaving.get(leaving.move) is not leaving or not leaving.may_be_released():
                return False
            del self._leaving[leaving.move]
            effect = effects.made(pb.MOVE_STATE_LEFT, leaving.move, leaving.to, leaving.objects)
            self._note(ctx, effect)
        names = ", ".join(map(repr, leaving.objects.values()))
        first = next(iter(leaving.objects.values()))
        engine.events.note("moved", f"{names} moved to owner {leaving.to!r}", subject=first, by=ctx.by())
        return True

    def _reopen(self, request: ops.MoveRequest) -> bool:
        """Returns whether this owner has the objects, and the move had not ended."""
        with self._lock:
            leaving = self._leaving.get(request.move)
            if leaving is None:
                return False
            leaving.reopen()
            if request.action == ops.MOVE_END:
                del self._leaving[request.move]
            return True

    # The target

    def _stage(self, ctx: RequestContext, request: ops.MoveRequest) -> None:
        told = request.contents
        found = ctx.read_plain(told.bytes)
        if not isinstance(found, torch.Tensor) or found.dtype != torch.uint8:
            raise InvalidArgumentError("contents are bytes")
        with self._lock:
            contents = self._staged.setdefault(request.move, Staged())
            contents.used = time.monotonic()
            contents.records = told.records
            contents.resize(told.nbytes)
            contents.put(told.blocks, found)

    def _make(self, ctx: RequestContext, request: ops.MoveRequest) -> None:
        """Makes the objects, so that what cannot be made here shows before anything is closed."""
        engine = self._engine
        with self._lock:
            records, source = self._read(request.move)
            objects = {each.object_id: each.name for each in records.objects}
            for earlier in list(engine.moves.arrivals.values()):
                if not earlier.objects.keys().isdisjoint(objects) and earlier.move != request.move:
                    if earlier.move > request.move:
                        raise StaleHandleError("a later move of the same objects to this owner has begun")
                    self._drop_now(ctx, earlier.move)
            self._check_new(objects)
            self._note(ctx, effects.made(pb.MOVE_STATE_ARRIVING, request.move, request.owner, objects))
            try:
                if ctx.effects is not None:
                    ctx.effects.pause()  # constructors may take long
                for each in records.objects:
                    put(engine, each, source)
            except BaseException:
                self._drop_now(ctx, request.move)
                raise
            self._staged[request.move].used = time.monotonic()

    def _check_new(self, objects: dict[str, str]) -> None:
        registry, held = self._engine.registry, self._engine.moves.held
        for object_id, name in objects.items():
            if object_id not in held and registry.get(object_id) is not None:
                raise NameConflictError(f"owner {self._engine.name!r} has {name!r} already")

    def _arrive(self, ctx: RequestContext, request: ops.MoveRequest) -> None:
        engine = self._engine
        with self._lock:
            arrival = engine.moves.arrivals.get(request.move)
            if arrival is None:
                raise StaleHandleError(f"owner {engine.name!r} has ended this move, or has started again")
            records, source = self._read(request.move)
            if ctx.effects is not None:
                ctx.effects.check(source.nbytes)
            for each in records.objects:
                put(engine, each, source)
                if ctx.effects is not None and (made := engine.registry.get(each.object_id)) is not None:
                    ctx.effects.changes(made)
            effect = effects.made(pb.MOVE_STATE_ARRIVED, arrival.move, arrival.owner, arrival.objects)
            effect.runs.extend(records.runs)
            self._note(ctx, effect)

    def _read(self, move: str) -> tuple[pb.MovedRecords, CopiedTensors]:
        contents = self._staged.get(move)
        if contents is None or contents.left:
            raise StaleHandleError(f"owner {self._engine.name!r} does not have all of the contents of this move")
        contents.used = time.monotonic()
        payload: Any = contents.bytes.numpy()
        source = CopiedTensors(np.asarray(payload))
        return pb.MovedRecords.FromString(contents.records), source

    def sweep(self) -> None:
        """Frees the contents of moves that nobody goes on with. Does nothing while it would have to wait."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            oldest = time.monotonic() - STAGED_SECONDS
            self._staged = {move: each for move, each in self._staged.items() if each.used > oldest}
            for move, leaving in list(self._leaving.items()):
                if leaving.used <= oldest:
                    leaving.reopen()
                    del self._leaving[move]
        finally:
            self._lock.release()

    def _accept(self, ctx: RequestContext, request: ops.MoveRequest, reply: ops.MoveReply) -> None:
        engine = self._engine
        with self._lock:
            arrival = engine.moves.arrivals.get(request.move)
            if arrival is not None:
                if not arrival.is_whole:
                    raise StaleHandleError(f"owner {engine.name!r} does not have all that this move is to bring")
                effect = effects.made(pb.MOVE_STATE_ACCEPTED, arrival.move, arrival.owner, arrival.objects)
                self._note(ctx, effect)
                self._staged.pop(request.move, None)
                names = ", ".join(map(repr, arrival.objects.values()))
                first = next(iter(arrival.objects.values()))
                engine.events.note("moved", f"{names} came from owner {arrival.owner!r}", subject=first, by=ctx.by())
        asked = [request.object_id] if request.object_id else []
        # An owner that does not have an object names no move: who asks has to hear of all that is here with it.
        together = moved_with(engine, request.object_id)
        for object_id in dict.fromkeys([*asked, *engine.moves.accepted.get(request.move, ()), *together]):
            hosted = engine.registry.get(object_id)
            if isinstance(engine.moves.held.get(object_id), Arrival):
                hosted = None  # it is another owner's
            if hosted is None and object_id in asked:
                engine.registry.moved.check_id(object_id)
                raise StaleHandleError(
                    f"the object {object_id} has come to owner {engine.name!r}, and was removed since"
                )
            if hosted is not None:
                if engine.registry.guard is not None:
                    engine.registry.guard(hosted)
                ctx.describe(reply.objects.add(), hosted)

    def _drop(self, ctx: RequestContext, move: str) -> None:
        with self._lock:
            self._drop_now(ctx, move)

    def _drop_now(self, ctx: RequestContext, move: str) -> None:
        self._staged.pop(move, None)
        arrival = self._engine.moves.arrivals.get(move)
        if arrival is not None:
            self._note(ctx, effects.made(pb.MOVE_STATE_DROPPED, move, arrival.owner, arrival.objects))

    def _note(self, ctx: RequestContext, effect: pb.MoveEffect) -> None:
        if ctx.effects is not None:
            ctx.effects.take_turn()
        effects.apply(self._engine, effect)
        if ctx.effects is not None:
            ctx.effects.moves(effect)
