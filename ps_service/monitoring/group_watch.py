"""Watches the owners of a group, for the page: only while somebody looks at it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ps_service.metrics.history import SAMPLE_SECONDS
from ps_service.monitoring.slow_trainers import SlowTrainers
from ps_service.monitoring.watched_owner import MOST_EVENTS, WatchedOwner
from ps_service.requests import reporting
from ps_wire.errors import PsError
from ps_wire.runtime.threads import BLOCKING
from ps_wire.v1.operations_pb2 import HistoryReply, HistoryRequest, Member, StatusReply, StatusRequest

if TYPE_CHECKING:
    from ps_service.engine import Engine

_log = logging.getLogger(__name__)

MOST_OWNERS: Final = 64
"""Most owners that are watched. A page says how many more there are."""

MOST_LISTED: Final = 2000
"""Most trainers, and most optimizers and tables, of one owner that a page shows."""

LINGER_SECONDS: Final = 30.0
"""For how long the watch goes on after the last page was closed: a page that is loaded anew shows what is known."""

_ASK_SECONDS: Final = 2.0
"""How long an owner has to answer."""

_LOOK_SECONDS: Final = 2.0
"""Seconds between two looks into the directory, and between two looks at the lists of an owner."""

_TRAINERS_PER_SECOND: Final = 100
"""Trainers that are listed per second: the lists of an owner with a thousand are looked at every ten seconds."""


class GroupWatch:
    """Asks the owners of the group for what they have measured, while it is wanted. Used on the event loop.

    The first of `owners` is that which serves the page, at `address`. `unseen` counts further members. `why_alone` says
    why the directory cannot be asked, if it cannot.
    """

    def __init__(self, engine: Engine, address: Callable[[], str]) -> None:
        self._engine = engine
        self._address = address
        self.linger_seconds = LINGER_SECONDS
        self._wanted_until = 0.0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._heard = asyncio.Event()
        self.owners: dict[str, WatchedOwner] = {}
        self.slow = SlowTrainers()
        self.unseen = 0
        self.why_alone = ""
        self._looked = asyncio.Event()

    def want(self) -> None:
        """Goes on for some time, or begins."""
        self._wanted_until = time.monotonic() + self.linger_seconds
        if not self._tasks:
            self._looked.clear()
            self._note([])
            self._tasks[""] = asyncio.create_task(self._look())

    async def wanted(self, seconds: float) -> None:
        """Goes on, or begins, and waits until the directory and all owners have answered once, or some time is over."""
        self.want()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._all_heard()
                await self._looked.wait()  # the directory may know of more
                await self._all_heard()

    async def _all_heard(self) -> None:
        while any(each.state == "asked" for each in self.owners.values()):
            self._heard.clear()
            await self._heard.wait()

    async def stop(self) -> None:
        """Stops, and forgets what is known. Calling it again does nothing."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        self.owners.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _look(self) -> None:
        """Follows the directory, until nobody wants to know."""
        while time.monotonic() < self._wanted_until:
            try:
                self._note(await self._engine.membership.peers.members(_ASK_SECONDS))
                self.why_alone = ""
            except PsError as error:
                self.why_alone = str(error)
            except Exception:
                _log.exception("looking for the members of the group failed; it will be tried again")
            self._looked.set()
            await asyncio.sleep(_LOOK_SECONDS)
        tasks = [task for name, task in self._tasks.items() if name]
        for task in tasks:
            task.cancel()
        self._tasks.clear()
        self.owners.clear()

    def _note(self, members: Iterable[Member]) -> None:
        own = self._engine.name
        listed = {each.name: each for each in members}
        listed.setdefault(own, Member(name=own, address=self._address()))
        for owner in self.owners.values():
            owner.listed = owner.name in listed
        self.unseen = 0
        for name, member in sorted(listed.items(), key=lambda each: (each[0] != own, each[1].id)):
            known = self.owners.get(name)
            if known is not None and known.address != member.address and name != own:
                # It has come back at another address.
                self._tasks.pop(name).cancel()
                known = None
            if name not in self.owners and len(self.owners) >= MOST_OWNERS and not self._gave_place():
                self.unseen += 1
            elif known is None:
                owner = self.owners[name] = WatchedOwner(name, member.address)
                self._tasks[name] = asyncio.create_task(self._follow(owner))

    def _gave_place(self) -> bool:
        """Whether an owner that has gone was let go, so that another one can be watched: the one that went first."""
        gone = [each for each in self.owners.values() if not each.listed and each.state in ("left", "lost")]
        if not gone:
            return False
        first = min(gone, key=lambda each: each.since)
        del self.owners[first.name]
        self._tasks.pop(first.name).cancel()
        return True

    async def _follow(self, owner: WatchedOwner) -> None:
        lists_at = 0.0
        while True:
            began = time.monotonic()
            try:
                await self._catch_up(owner)
                if began >= lists_at:
                    request = StatusRequest(
                        most=MOST_LISTED, events=MOST_EVENTS, events_after=owner.last_event, without_objects=True
                    )
                    status = await self._ask(owner, "Status", request, StatusReply())
                    lists_at = began + max(_LOOK_SECONDS, len(status.trainers) / _TRAINERS_PER_SECOND)
                    owner.told(status)
                    if owner.name == self._engine.name:
                        self.slow.look(list(self.owners.values()))
            except PsError as error:
                owner.failed(str(error))
            except Exception:
                _log.exception("looking at %s failed; it will be tried again", owner.name)
                owner.failed("see the log of the owner that serves this page")
            self._heard.set()
            await asyncio.sleep(max(began + SAMPLE_SECONDS - time.monotonic(), 0.1))

    async def _catch_up(self, owner: WatchedOwner) -> None:
        while True:
            request = HistoryRequest(after=owner.last_number, with_curves=True, curves=owner.seen())
            reply = await self._ask(owner, "History", request, HistoryReply())
            more = len(reply.samples)
            owner.heard(reply)
            # A reply holds some of the samples only, and none counts if the owner has started anew.
            if more < 2 and owner.state != "asked":
                return

    async def _ask(self, owner: WatchedOwner, method: str, request: Any, reply: Any) -> Any:
        if owner.name != self._engine.name:
            return await self._engine.membership.peers.ask(owner.address, method, request, _ASK_SECONDS)
        # Of the own engine nobody has to ask over the network.
        if method == "History":
            reporting.write_history(self._engine, request.after, reply)
            reporting.write_curves(self._engine, request.curves, reply)
        else:
            await BLOCKING.run(reporting.write_status, self._engine, request, reply)
        return reply
