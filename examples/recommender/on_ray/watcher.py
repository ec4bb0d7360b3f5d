"""Measures the model while Ray Train trains it, and cuts the power of a machine on the way."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import ray

import trainer_client as tc
from examples.jobs import PATIENCE
from examples.raylets import Machines
from examples.recommender.on_ray.report import Report
from examples.recommender.on_ray.trainer import CLUSTER
from examples.recommender.settings import Settings, source_of
from examples.recommender.trainer import Recommender
from examples.recommender.training import score
from ps_service.ray import Cluster

LOST: Final = "recommender1"
"""The owner whose machine is cut off."""

_LOOK_SECONDS: Final = 0.1
_SCORE_SECONDS: Final = 4.0
_MOST_SECONDS: Final = 300.0
"""How long anything may take at most, on a busy machine."""


class Watcher:
    """Watches a training from two threads of its own, until `end`. `notes` is the actor with the times of steps."""

    def __init__(self, settings: Settings, machines: Machines, cluster: Cluster, notes: Any) -> None:
        self._settings = settings
        self._machines = machines
        self._cluster = cluster
        self._notes = notes
        self._over = threading.Event()
        self._auc: list[tuple[float, float]] = []
        self._applied: dict[str, int] = {}
        self._moments: list[float] = []
        self._moved: tuple[str, str] = ("", "")
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(each,)) for each in (self._measure, self._cut)]
        for thread in self._threads:
            thread.start()

    def end(self) -> Report:
        """Waits for the last measurement, and returns what was seen. Raises what has ended one of the threads."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        times = sorted(ray.get(self._notes.times.remote()))
        steps = [each - times[0] for each in times]
        auc = [(max(when - times[0], 0.0), found) for when, found in self._auc]
        cut, known, back = (each - times[0] for each in self._moments)
        return Report(steps, auc, cut, known, back, self._moved, self._applied)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._errors.append(error)

    def _measure(self) -> None:
        asyncio.run(self._measured())

    async def _measured(self) -> None:
        held_out = source_of(self._settings).held_out()
        async with tc.connect(directory=f"ray:{CLUSTER}", timeout=PATIENCE, reconnect_timeout=PATIENCE) as ps:
            model = await Recommender.attach(ps, self._settings, trains=False)
            over = False
            while not over:
                over = await asyncio.to_thread(self._over.wait, _SCORE_SECONDS)
                found = await score(model, held_out)
                self._auc.append((time.monotonic(), found))
            for owner in ps.owners:
                # All tables of an owner make each step. The dense part has one for both trainers.
                self._applied[owner] = max(each.version for each in (await ps.status(owner)).optimizers)

    def _cut(self) -> None:
        steps = source_of(self._settings).steps
        self._waited(lambda: len(ray.get(self._notes.times.remote())) >= steps // 2)
        states = self._cluster.status()
        before = next(each for each in states if each.name == LOST)
        self._moments.append(time.monotonic())
        self._machines.cut_power(before.node, [each.pid for each in states if each.node == before.node])
        self._waited(lambda: self._machines.is_known_dead(before.node))
        self._moments.append(time.monotonic())
        self._waited(lambda: self._state().state == "serving" and self._state().node != before.node)
        self._moments.append(time.monotonic())
        self._moved = (before.address, self._state().address)

    def _state(self) -> Any:
        return next(each for each in self._cluster.status() if each.name == LOST)

    def _waited(self, so: Callable[[], bool]) -> None:
        ends = time.monotonic() + _MOST_SECONDS
        while not so():
            if time.monotonic() > ends or self._over.is_set():
                raise TimeoutError("the training has ended before the machine was replaced")
            time.sleep(_LOOK_SECONDS)
