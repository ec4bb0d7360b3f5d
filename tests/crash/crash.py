"""Kills owners and trainers again and again, and checks after each start that nothing was lost or counted twice."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

import torch

import trainer_client as tc
from tests.crash.events import Action, Violation
from tests.crash.exports import Export
from tests.crash.points import POINTS
from tests.crash.processes import PATIENCE, OwnerProcess, TrainerProcess
from tests.crash.report import Report, Restart
from tests.crash.workloads import WORKLOADS
from tests.crash.workloads.tables import Tables
from tests.crash.workloads.workload import Horizon
from tests.forking.process import Forking

TRANSPORTS: Final = ("memory", "direct", "grpc")
MODES: Final = ("always", "always", "interval:0.05", "interval:0.3")

_KINDS: Final = {"point": 12, "random": 3, "owners": 1, "trainer": 2, "all": 1, "exporter": 3, "reader": 1}
"""How often each kind of kill is chosen."""

_BY_COMING: Final = {"optimizer", "scheduler"}
"""What trainers ask for when they come, so that one has to be killed for it."""

_LONGEST: Final = 0.3
"""Most seconds before a kill at a random moment."""

_MISSED: Final = 1.5
"""Seconds after which a point is given up that an owner does not come to."""

_LATE: Final = 0.5
"""Seconds by which a machine that has much to do may sync later than the interval says."""


class Crash:
    """Two owners, three trainers, the workloads, and an export of tables with its reader. The seed decides what is
    killed when, but not what the processes do meanwhile."""

    def __init__(self, forking: Forking, folder: Path, seed: int, names: Sequence[str], report: Report) -> None:
        self._forking = forking
        self._choose = random.Random(seed)
        self._seed = seed
        self._names = names
        self._report = report
        self._owners = [OwnerProcess(forking, folder, name, "always") for name in ("ps0", "ps1")]
        self._trainers: list[TrainerProcess] = []
        # Of trainers that were killed since the last check.
        self._left: list[Action] = []
        self._workloads = {name: WORKLOADS[name]() for name in names}
        tables = [f"{Tables.name}-{each.name}" for each in self._owners]
        self._export = Export(forking, folder, self._owners, tables) if Tables.name in names else None
        self._lives = 0
        self._runner = asyncio.Runner()
        self._restarts: list[Restart] = []
        self._checked_at = 0.0
        self._told = folder / "actions.jsonl"
        torch.set_num_threads(1)

    def begin(self) -> None:
        """Starts owners and trainers."""
        for each in self._owners:
            each.start()
        self._runner.run(self._prepare())
        if self._export is not None:
            self._export.begin()
        for slot in range(3):
            self._trainers.append(self._trainer(slot))
        self._go()

    def close(self) -> None:
        """Ends all processes."""
        for trainer in self._trainers:
            if not trainer.is_dead:
                trainer.kill()
        if self._export is not None:
            self._export.close()
        for owner in self._owners:
            owner.close()
        self._runner.close()

    def round(self, kills: int) -> None:
        """Draws what owners promise, starts them with it, kills so many processes or a few more, and checks in between.
        Raises `Violation`."""
        end = self._report.kills + kills
        modes = [self._choose.choice(MODES) for _ in self._owners]
        self._report.begin_round(modes)
        self._kill_owners(False, modes)
        while self._report.kills < end:
            self._kill()
            if self._choose.random() < 0.5:
                self._check()
        self._check()
        self._report.end_round()

    # Kills

    def _kill(self) -> None:
        kind = self._choose.choices([*_KINDS], [*_KINDS.values()])[0]
        owner = self._choose.choice(self._owners)
        if kind == "point":
            self._at_point(owner, self._report.rarest(self._choose))
        elif kind == "random":
            self._work()
            owner.kill()
            self._report.killed(kind)
            self._restart(owner)
        elif kind == "owners":
            self._work()
            self._kill_owners(self._choose.random() < 0.5)
        elif kind == "trainer":
            self._work()
            self._kill_trainer(self._choose.randrange(3))
        elif kind == "all":
            self._kill_all()
        elif self._export is not None:
            self._work()
            self._report.killed(kind)
            self._export.start(kind)

    def _work(self, least: float = 0.0) -> None:
        time.sleep(least + self._choose.random() * _LONGEST)
        for each in self._trainers:
            each.check()
        if self._export is not None:
            self._export.check_processes()

    def _at_point(self, owner: OwnerProcess, name: str) -> None:
        point = POINTS[name]
        count = self._choose.randint(1, point.most)
        if point.during in ("start", "damage"):
            self._work()
            owner.kill()
            self._report.killed("random")
            if point.during == "damage" and not owner.damage_checkpoint(self._choose):
                self._restart(owner)
                self._report.missed(name)
                return
            self._restart(owner, name, count)
            return
        self._report.note(f"arms {owner.name} {name} {count}")
        owner.arm(name, count)
        if point.during == "checkpoint":
            owner.checkpoint()
        elif point.during == "drain":
            owner.terminate()
            for each in self._workloads.values():
                each.drained(owner.name)
        elif name.startswith(("session.ended", "answer.attach")):
            self._runner.run(self._visit(owner))
        elif name.startswith("session.") or name.split(".")[1] in _BY_COMING:
            self._kill_trainer(self._choose.randrange(3))
        if owner.ended(_MISSED) and owner.code == 0:
            self._report.missed(name)
        elif owner.ended(0.0):
            self._report.killed("point", name)
        else:
            owner.kill()
            self._report.missed(name)
            self._report.killed("random")
        self._restart(owner)

    def _restart(self, owner: OwnerProcess, point: str = "", count: int = 1) -> None:
        """Starts an owner that was killed, maybe after its machine has lost its power."""
        if owner.always and self._choose.random() < 0.5:
            owner.lose(self._choose)
            self._report.lost_power(owner.name)
        began = time.monotonic()
        self._report.note(f"starts {owner.name} {point} {count}")
        if not owner.start(point, count):
            self._report.killed("point", point)
            self._restart(owner)
            return
        if point:
            owner.disarm()
            self._report.missed(point)
        self._restarts.append(Restart(owner.name, began, time.monotonic()))

    def _kill_owners(self, lose: bool, modes: Sequence[str] = ()) -> None:
        for owner in self._owners:
            owner.kill()
            self._report.killed("owners")
        for owner in self._owners:
            if lose and owner.always:
                owner.lose(self._choose)
                self._report.lost_power(owner.name)
        for owner, mode in zip(self._owners, modes, strict=False):
            owner.durability = mode
        for owner in self._owners:
            self._restart(owner)

    def _kill_trainer(self, slot: int) -> None:
        self._bury(slot)
        self._trainers[slot] = self._trainer(slot)
        self._trainers[slot].go()

    def _bury(self, slot: int) -> None:
        self._trainers[slot].kill()
        self._report.killed("trainer")
        self._left += self._trainers[slot].take_actions()

    def _kill_all(self) -> None:
        """Everything ends at once, as in a house without power."""
        interval = max(each.interval for each in self._owners) + _LATE
        self._work(max(0.0, self._checked_at + interval - time.monotonic()))
        at = time.monotonic()
        for owner in self._owners:
            owner.kill()
            self._report.killed("all")
        for slot in range(3):
            self._bury(slot)
        if self._export is not None:
            self._export.close()
        lost = {}
        for owner in self._owners:
            if self._choose.random() < 0.7:
                owner.lose(self._choose)
                self._report.lost_power(owner.name)
                if not owner.always:
                    lost[owner.name] = at - owner.interval - _LATE
        for owner in self._owners:
            self._restart(owner)
        if self._export is not None:
            self._export.begin()
        self._trainers = [self._trainer(slot) for slot in range(3)]
        self._check(Horizon(lost))

    # Checks

    def _trainer(self, slot: int) -> TrainerProcess:
        self._lives += 1
        seed = f"{self._seed}-{self._lives}"
        return TrainerProcess(self._forking, slot, seed, TRANSPORTS[slot], self._names, self._owners)

    def _go(self) -> None:
        for each in self._trainers:
            each.go()

    def _check(self, horizon: Horizon = Horizon()) -> None:  # noqa: B008  (it has no state)
        """Has trainers pause, and compares what owners have with what they must have."""
        for each in self._trainers:
            each.pause()
        until = time.monotonic() + PATIENCE
        try:
            for each in self._trainers:
                each.wait_paused(until)
        except Violation:
            for owner in self._owners:
                owner.tell_stacks()
            raise
        actions = self._left
        for each in self._trainers:
            actions = [*actions, *each.take_actions()]
        self._left = []
        self._report.checked(actions, self._restarts, self._workloads)
        self._restarts = []
        with self._told.open("a") as file:
            file.writelines(f"{json.dumps(asdict(each))}\n" for each in actions)
        self._report.note(f"checks {len(actions)} actions {horizon}")
        self._runner.run(self._compare(actions, horizon))
        self._checked_at = time.monotonic()
        self._go()

    async def _visit(self, owner: OwnerProcess) -> None:
        """Begins a session with an owner, attaches to an object, and ends it."""
        with suppress(tc.PsError):
            async with tc.connect(owner.address, timeout=1.0, connect_timeout=1.0, reconnect_timeout=1.0) as ps:
                await ps.attach("ledger")

    async def _prepare(self) -> None:
        async with tc.connect(*(each.address for each in self._owners)) as ps:
            for workload in self._workloads.values():
                await workload.begin(ps)

    async def _compare(self, actions: Sequence[Action], horizon: Horizon) -> None:
        async with tc.connect(*(each.address for each in self._owners), timeout=PATIENCE) as ps:
            for name, workload in self._workloads.items():
                await workload.check(ps, [each for each in actions if each.workload == name], horizon)
                if isinstance(workload, Tables) and self._export is not None:
                    await self._export.check(workload.take_passed(), horizon)
                    await workload.remove_some(self._choose)
