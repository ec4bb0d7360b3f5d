"""Puts the points that are no operations of files into an owner: around its answers, records, starts and ends."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any, Final

from ps_service.durability import keeper, restoring
from ps_service.durability.keeper import Keeper
from ps_service.durability.live.checkpoint import LiveCheckpoint
from ps_service.durability.live.part_writing import PartWriter
from ps_service.durability.log import replaying
from ps_service.durability.log.effects import RequestEffects
from ps_service.durability.log.log import Log
from ps_service.durability.log.owners_log import OwnersLog
from ps_service.requests.context import RequestContext
from ps_service.rpc.session_stream import SessionStream
from ps_service.server import Server
from ps_service.tables.row_steps import RowSteps
from tests.crash.points import ANSWERED, COMMITTED, Points

_SOON: Final = 0.002
"""Seconds after which an answer has left the process."""


class Hooks:
    """Wraps functions of the owner, so that they reach points."""

    def __init__(self, reach: Callable[[str], None]) -> None:
        self.reach = reach

    def around(self, owner: Any, method: str, name: str) -> None:
        """Points before and after a function."""
        own = getattr(owner, method)

        @functools.wraps(own)
        def wrapped(*args: Any, **more: Any) -> Any:
            self.reach(f"{name}.before")
            result = own(*args, **more)
            self.reach(f"{name}.after")
            return result

        setattr(owner, method, wrapped)

    def after(self, owner: Any, method: str, name: str) -> None:
        """A point after a function."""
        own = getattr(owner, method)

        @functools.wraps(own)
        def wrapped(*args: Any, **more: Any) -> Any:
            result = own(*args, **more)
            self.reach(name)
            return result

        setattr(owner, method, wrapped)

    def around_async(self, owner: Any, method: str, name: str) -> None:
        """Points before and after a coroutine function."""
        own = getattr(owner, method)

        @functools.wraps(own)
        async def wrapped(*args: Any, **more: Any) -> Any:
            self.reach(f"{name}.before")
            result = await own(*args, **more)
            self.reach(f"{name}.after")
            return result

        setattr(owner, method, wrapped)


def install(points: Points, segment_bytes: int) -> None:
    """Puts all of them in, and has the log use files of that size, so that it changes them often; and take steps of
    rows as gradients, though these rows are so small that they would be less."""
    hooks = Hooks(points.reach)
    _small_files(segment_bytes)
    RowSteps.nbytes = lambda *_: 0  # type: ignore[method-assign, assignment]
    _answers(points)
    _commits(points)
    hooks.around(RequestContext, "run_after", "step.compute")
    hooks.around(OwnersLog, "opened", "pass.opened")
    hooks.around(OwnersLog, "came", "session.came")
    hooks.around(OwnersLog, "ended", "session.ended")
    hooks.around(OwnersLog, "began", "log.began")
    hooks.around(Log, "open", "log.open")
    hooks.around(Log, "cut", "log.cut")
    hooks.around(LiveCheckpoint, "write", "checkpoint.objects")
    hooks.around(PartWriter, "_write_copies", "checkpoint.piece")
    hooks.after(Keeper, "__init__", "start.begin")
    hooks.after(restoring, "_made", "restore.object")
    hooks.after(restoring, "_fill", "restore.state")
    hooks.after(keeper, "restore", "restore.end")
    hooks.after(replaying, "_apply", "replay.record")
    hooks.after(Keeper, "_replay", "replay.end")
    hooks.around_async(Server, "quiet", "drain.quiet")
    hooks.around_async(Server, "_keep", "drain.keep")
    _before_async(Server, "stop", lambda: points.reach("drain.stop"))


def _before_async(owner: Any, method: str, work: Callable[[], None]) -> None:
    own = getattr(owner, method)

    @functools.wraps(own)
    async def wrapped(*args: Any, **more: Any) -> Any:
        work()
        return await own(*args, **more)

    setattr(owner, method, wrapped)


def _small_files(nbytes: int) -> None:
    class SmallLog(Log):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more, segment_bytes=nbytes)

    keeper.Log = SmallLog


def _answers(points: Points) -> None:
    own = SessionStream.send

    @functools.wraps(own)
    def send(self: Any, answer: Any, *args: Any, **more: Any) -> None:
        operation = answer.reply.WhichOneof("outcome")
        if operation not in ANSWERED:
            own(self, answer, *args, **more)
            return
        points.reach(f"answer.{operation}.before")
        own(self, answer, *args, **more)
        if points.is_due(f"answer.{operation}.after"):
            asyncio.get_running_loop().call_later(_SOON, points.end)

    SessionStream.send = send  # type: ignore[method-assign]


def _commits(points: Points) -> None:
    own = RequestEffects.commit

    @functools.wraps(own)
    def commit(self: Any, trainer: bytes, number: int, answer: Any) -> None:
        operation = answer.reply.WhichOneof("outcome")
        if operation not in COMMITTED:
            own(self, trainer, number, answer)
            return
        points.reach(f"commit.{operation}.before")
        own(self, trainer, number, answer)
        points.reach(f"commit.{operation}.after")

    RequestEffects.commit = commit  # type: ignore[method-assign]
