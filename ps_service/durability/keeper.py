"""Restores an owner's state from its data directory, and writes checkpoints back."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ps_service.durability import rounds, writing
from ps_service.durability.books import Bookkeeping, bookkeeping
from ps_service.durability.epoch import FencedError, RemovedError
from ps_service.durability.keys import Keys, SignatureError
from ps_service.durability.live.checkpoint import LiveCheckpoint
from ps_service.durability.live.reuse import Earlier
from ps_service.durability.log.chain import Chain
from ps_service.durability.log.disk import Disk
from ps_service.durability.log.effects import EffectsLog
from ps_service.durability.log.log import Log, LogError
from ps_service.durability.log.mode import OFF, Mode
from ps_service.durability.log.newer import Newer
from ps_service.durability.log.replaying import replay
from ps_service.durability.log.round_journal import LoggedRounds
from ps_service.durability.log.segments import DamagedLogError
from ps_service.durability.moving.moves import ObjectMoves
from ps_service.durability.restoring import put, restore
from ps_service.durability.store import CheckpointError, Store, parsed
from ps_service.training.optimizers import HostedOptimizer
from ps_wire.errors import InternalError, PsError, UnavailableError
from ps_wire.runtime.locks import ReportingLock
from ps_wire.runtime.threads import BLOCKING, read_on_loop
from ps_wire.v1.operations_pb2 import CheckpointReply

if TYPE_CHECKING:
    from ps_service.durability.epoch import Epoch
    from ps_service.durability.manifest import Manifest
    from ps_service.engine import Engine

_log = logging.getLogger(__name__)


class Keeper:
    """Keeps the state of one owner, which must not host anything yet, in its data directory: its last checkpoints, as
    many as are to be `kept`. Objects whose name or id is to be left out are not restored. With a `key_file`, what it
    writes is signed, and it reads only what is. Raises `KeyFileError`."""

    def __init__(
        self,
        engine: Engine,
        folder: Path,
        kept: int = 2,
        leave_out: Collection[str] = (),
        durability: Mode = OFF,
        key_file: Path | None = None,
    ) -> None:
        self._durability = durability
        self._effects: EffectsLog | None = None
        self._told_state = "writable"
        self._loop = asyncio.get_running_loop()
        # Of the log: where it goes on after the newest checkpoint, and its place when the owner started.
        self._position = 0
        self._end: tuple[int, bytes] = (0, b"")
        self._earlier = Earlier()
        self._engine = engine
        self._keys = None if key_file is None else Keys.read(key_file)
        self._store = Store(folder, kept, self._keys)
        self._epoch: Epoch | None = None
        self._leave_out = leave_out
        self._lock = ReportingLock()
        self._is_over = self._is_removed = False

    def resume(self) -> None:
        """Restores the newest checkpoint, if there is one. Raises `CheckpointError` if that cannot be done."""
        self._epoch = self._store.begin_epoch()
        newest = self._store.newest()
        if newest is not None:
            self._restore(*newest)
        chain = None if self._keys is None else Chain(self._keys, self._engine.name)
        log = Log(self._store.folder, self._durability.interval, epoch=self._epoch, chain=chain)
        self._position = self._engine.durability.position
        # Also without --durability: what an earlier start has acknowledged counts.
        if not self._replay(log) and newest is None:
            _log.info("%s starts empty; its state will be kept in %s", self._engine.name, self._store.folder)
        if self._durability.has_log:
            self._open(log)

    def drop_strangers(self) -> None:
        """Ends the membership of trainers in rounds whose sessions ended before the owner could tell the rounds. Called
        on the event loop, after `resume`: rounds may decide something then, which is noted in the log."""
        for each in self._engine.registry.objects():
            if isinstance(each.value, HostedOptimizer):
                rounds.drop_strangers(self._engine, each.value)

    def _replay(self, log: Log) -> int:
        """Applies what the log has since the checkpoint; returns how many records that were."""
        engine, began = self._engine, time.monotonic()
        try:
            newer, whole = Newer(engine.durability.newer), engine.durability.whole
            count = replay(engine, log.read(self._position, engine.durability.code), put, newer)
            engine.durability.newer = ()
            if log.end < whole:
                raise DamagedLogError(
                    f"the log in {self._store.folder} ends at position {log.end}, and the newest checkpoint needs it "
                    f"up to {whole}"
                )
        except DamagedLogError as error:
            raise CheckpointError(str(error)) from error
        except SignatureError as error:
            raise CheckpointError(f"{self._store.folder} is not loaded: {error}") from error
        except PsError as error:
            raise CheckpointError(f"the log in {self._store.folder} does not fit its checkpoint: {error}") from error
        self._end, engine.durability.began = log.place(), log.end
        if count:
            engine.incarnations.killed = frozenset(engine.incarnations.earlier)
            seconds = time.monotonic() - began
            text = f"{engine.name} has applied {count:,} records of its log in {seconds:.2f} s"
            engine.events.note("restored", text)
        return count

    def _open(self, log: Log) -> None:
        """Has what changes from now on appended to the log."""
        engine = self._engine
        try:
            log.open(log.end)
            self._effects = EffectsLog(engine, log, self._durability, lambda: self.log_bytes)
            self._effects.began()
            # Trainers that it welcomes know it by its incarnation: a start that did not would not know their sessions.
            log.sync()
        except LogError as error:
            raise CheckpointError(error.strerror) from error
        engine.contexts.when_opened = self._effects.opened
        engine.sessions.when_opened = self._effects.came
        engine.contexts.when_over = self._effects.over
        engine.memberships.journals = partial(LoggedRounds, self._effects)
        for each in engine.registry.objects():
            if isinstance(each.value, HostedOptimizer) and (found := each.value.aggregator) is not None:
                found.note_in(LoggedRounds(self._effects, each.value, found))
        engine.durability.log = self._effects
        moves = ObjectMoves(engine)
        engine.moves.serve, engine.moves.sweep = moves.serve, moves.sweep

    def _restore(self, folder: Path, manifest: Manifest) -> None:
        left_out = restore(self._engine, folder, manifest, self._leave_out)
        hosted, sessions = len(self._engine.registry), len(self._engine.sessions)
        text = f"{self._engine.name} resumes from {folder} of {manifest.written}: {hosted} objects, {sessions} sessions"
        self._engine.events.note("restored", text)
        if self._leave_out:
            what = ", ".join(left_out) or f"nothing: {folder.name} has no object {' or '.join(self._leave_out)}"
            self._engine.events.note("restored", f"left out, as it was asked to: {what}", "warning")

    async def keep(self, orderly: bool) -> None:
        """Writes a checkpoint of an owner that accepts no requests. Raises `CheckpointError` if it cannot be written.

        If hosted code is still running, and the end not `orderly`, objects whose locks it holds are left out.
        """
        await self._finish_rounds()
        books = bookkeeping(self._engine)
        folder, manifest = await BLOCKING.run(self._write, books, orderly)
        self._engine.events.note("checkpoint", f"the state of {self._engine.name} is kept in {folder}")
        for each in manifest.left_out:
            _log.warning("%s %r is not kept: %s", each["class"], each["name"], each["why"])

    def give_up(self, why: str) -> None:
        """Writes nothing from now on, neither a checkpoint nor to the log: what is kept is another owner's."""
        self._is_over = True
        if self._effects is not None:
            self._effects.log.refuse(OSError(errno.ESTALE, why))

    def write_now(self, by: Mapping[str, str] | None = None) -> CheckpointReply:
        """Writes a checkpoint while the owner goes on, which somebody may have asked for. Blocks; several threads take
        turns.

        Raises `UnavailableError` if the owner is stopping, and `InternalError` if it cannot be written.
        """
        began, held = time.monotonic(), 0.0

        def fill(folder: Path) -> Manifest:
            nonlocal held
            if live is None:
                manifest, held = writing.write_live(self._engine, folder, self._end)
                return manifest
            try:
                return live.write(folder)
            finally:
                held = live.longest

        with self._lock:
            if self._is_over:
                raise UnavailableError(f"owner {self._engine.name!r} is stopping, and writes its checkpoint by itself")
            live = None
            if self._effects is not None:
                on_loop = partial(read_on_loop, self._loop)
                live = LiveCheckpoint(self._engine, self._effects, on_loop, self._earlier, Disk())
            try:
                folder, manifest = self._store.write(fill)
            except (CheckpointError, PsError) as error:
                self._engine.events.note("checkpoint", str(error), "error", alike=("checkpoint", str(error)))
                if isinstance(error, PsError):
                    raise
                raise InternalError(str(error)) from error
            if live is not None:
                self._position, self._earlier = live.position, live.completed(folder, manifest)
                self._cut()
        reply = CheckpointReply(owner=self._engine.name, folder=str(folder), objects=len(manifest.objects))
        reply.bytes = sum(each["bytes"] for each in manifest.files.values())
        reply.seconds, reply.held_seconds = time.monotonic() - began, held
        reply.left_out.extend(f"{each['class']} {each['name']!r}: {each['why']}" for each in manifest.left_out)
        self._engine.events.note(
            "checkpoint",
            f"the state of {reply.owner} is kept in {folder}: {reply.objects:,} objects, {reply.bytes:,} bytes in "
            f"{reply.seconds:.2f} s; steps waited for {'at most ' if live is not None else ''}{held:.2f} s",
            by=by,
        )
        return reply

    def _cut(self) -> None:
        """Frees what no checkpoint needs of the log."""
        assert self._effects is not None
        log = self._effects.log
        try:
            log.sync()
            log.cut(min(parsed(each).position for each in self._store.kept()))
        except OSError as error:
            self._engine.events.note("checkpoint", f"the log could not be cut: {error}", "warning")

    def fenced(self) -> str:
        """Why this owner must not go on, if another one has taken its data directory; otherwise empty. If the directory
        was removed, the log fails, and an owner without one goes on."""
        try:
            if self._epoch is not None:
                self._epoch.check()
            self._is_removed = False
        except FencedError as error:
            return error.strerror or str(error)
        except RemovedError as error:
            self._tell_removed(error)
        except OSError as error:
            _log.warning("the epoch in %s cannot be read: %s", self._store.folder, error)
        return ""

    def _tell_removed(self, error: RemovedError) -> None:
        if self._effects is not None:
            self._effects.log.refuse(error)  # which `look_at_log` tells
        elif not self._is_removed:
            self._engine.events.note("checkpoint", str(error.strerror), "error")
        self._is_removed = True

    def has_epoch(self) -> bool:
        """Whether no other owner has taken the data directory; false also if that cannot be told, or it is gone."""
        try:
            if self._epoch is not None:
                self._epoch.check()
        except OSError:
            return False
        return True

    def look_at_log(self) -> None:
        """Tries whether a log that was full can be written again, and tells when its state has changed."""
        effects = self._effects
        if effects is None:
            return
        if effects.state == "full":
            with suppress(OSError):
                effects.log.try_again()
        state, before = effects.state, self._told_state
        self._told_state = state
        if state == before:
            return
        if state == "writable":
            self._engine.events.note("log", "the log can be written again: changes are taken", alike=("log", state))
            return
        until = "there is room" if state == "full" else "the owner starts again, from what is on the disk"
        text = f"{effects.why}; what would change something is refused until {until}"
        self._engine.events.note("log", text, "error", alike=("log", state))

    @property
    def log_bytes(self) -> int:
        """Bytes of the log since the newest checkpoint."""
        return 0 if self._effects is None else self._effects.log.end - self._position

    async def _finish_rounds(self) -> None:
        """Applies gradients that optimizers have accepted and not applied yet."""
        for hosted in self._engine.registry.objects():
            if isinstance(hosted.value, HostedOptimizer) and hosted.value.aggregator is not None:
                await asyncio.wrap_future(hosted.value.aggregator.finish_round())

    def close(self) -> None:
        """Releases the directory, so that another owner can use it."""
        if self._effects is not None:
            self._effects.log.close()
        self._store.close()

    def _write(self, books: Bookkeeping, orderly: bool) -> tuple[Path, Manifest]:
        with self._lock:
            # One that knows of no sessions must not become the newest.
            self._is_over = True
            place = self._end if self._effects is None else self._effects.log.place()
            books.message.position, books.message.code = place
            written = self._store.write(lambda folder: writing.write(self._engine, books, folder, orderly))
            if self._effects is not None:
                self._cut()
            return written
