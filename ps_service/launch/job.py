"""Owners and trainers that work together until the trainers have finished, or one of them fails."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ps_service.launch.owner import SELF, Owner
from ps_service.launch.ports import ReservedPort
from ps_service.launch.prefixed import Prefixed
from ps_service.launch.process import Process, ProcessFailed
from ps_service.launch.processes import Processes
from ps_service.launch.trainers import environment_of

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Plan:
    """What a job runs.

    Attributes:
        owners: The options of `ps-service serve` for each owner.
        program: The program of the trainers, with its arguments.
        trainers: How many there are.
        restarts: How often each of them, and each owner with a data directory, is started again.
        keeps: Whether owners have data directories.
        grace_seconds: Between the signal that ends a trainer, and the one that kills it.
        port: Where the first owner listens, and the others at those that follow; 0 for free ports.
    """

    owners: Sequence[Sequence[str]]
    program: Sequence[str]
    trainers: int = 1
    restarts: int = 0
    keeps: bool = False
    grace_seconds: float = 30.0
    port: int = 0


class Job:
    """Runs a plan on this machine. Lines of its processes go to the outputs of this one, behind their names.

    Args:
        plan: The plan.
        tell: Says a line about the job.
    """

    def __init__(self, plan: Plan, tell: Callable[[str], None]) -> None:
        self._plan = plan
        self._tell = tell
        self._processes = Processes(plan.grace_seconds)
        self._owners: list[Owner] = []
        self._trainers: dict[int, Process] = {}
        self._stopped = asyncio.Event()
        self._signal = signal.SIGTERM
        self._out, self._errors = (Prefixed(file.fileno(), self._closed) for file in (sys.stdout, sys.stderr))

    async def run(self) -> int:
        """Runs it, and returns its exit status: 0, that of the first process that failed, or, as in a shell, the number
        of the signal that ended it and 128. Nothing that it has started is left.

        Raises:
            OSError: There is no such port, or there can be no further process.
        """
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        for number, handler in before.items():
            if number != signal.SIGHUP or handler != signal.SIG_IGN:  # as nohup wants it
                signal.signal(number, partial(self._hear, asyncio.get_running_loop()))
        try:
            return await self._run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def _run(self) -> int:
        async with self._processes:
            work = asyncio.create_task(self._work())
            stopped = asyncio.create_task(self._stopped.wait())
            await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if not work.done():
                work.cancel()
            (result,) = await asyncio.gather(work, return_exceptions=True)
            status = self._status_of(result)
            ended = await self._end()
            return status or ended

    async def _work(self) -> None:
        """Returns when all trainers have finished; raises `ProcessFailed` for the first process that failed."""
        plan = self._plan
        for number, flags in enumerate(plan.owners):
            name = f"ps{number}"
            directory = self._owners[0].address if number else SELF
            port = plan.port and plan.port + number
            self._owners.append(
                Owner(
                    *(self._processes, name, flags, directory, port),
                    out=self._out.of(name),
                    errors=self._errors.of(name),
                )
            )
        await _all(*(owner.start() for owner in self._owners))
        # Nobody else gets it; rank 0 may listen there.
        master = ReservedPort()
        keeping = asyncio.create_task(_all(*map(self._keep, self._owners)))
        training = asyncio.create_task(_all(*(self._train(rank, master.number) for rank in range(plan.trainers))))
        try:
            await asyncio.wait([training, keeping], return_when=asyncio.FIRST_COMPLETED)
            await (training if training.done() else keeping)
        finally:
            master.close()
            for each in (training, keeping):
                each.cancel()
            await asyncio.gather(training, keeping, return_exceptions=True)

    async def _keep(self, owner: Owner) -> None:
        """Starts an owner again when it has ended, as often as is allowed."""
        failure = await owner.failed()
        for left in reversed(range(self._plan.restarts if self._plan.keeps else 0)):
            self._tell_again(failure, left)
            try:
                await owner.start()
                failure = await owner.failed()
            except ProcessFailed as error:
                failure = error
        raise failure

    async def _train(self, rank: int, master_port: int) -> None:
        """Runs a trainer to its end, from the beginning as often as is allowed."""
        plan, name = self._plan, f"trainer {rank}"
        environment = environment_of(rank, plan.trainers, [each.address for each in self._owners], master_port)
        for left in reversed(range(plan.restarts + 1)):
            process = self._trainers[rank] = self._processes.start(
                name, plan.program, environment, self._out.of(name), self._errors.of(name)
            )
            if not await process.wait():
                return
            if not left:
                raise process.failed("")
            self._tell_again(process.failed(""), left - 1)

    def _tell_again(self, failure: ProcessFailed, left: int) -> None:
        number = self._plan.restarts - left
        self._tell(f"{failure}; it is started again ({number} of {self._plan.restarts})")

    def _hear(self, loop: asyncio.AbstractEventLoop, number: int, _: object) -> None:
        """The handler of signals. It runs at once, also while the event loop waits for whoever reads the output."""
        self._out.hurry()
        self._errors.hurry()
        loop.call_soon_threadsafe(self._take_signal, signal.Signals(number))

    def _take_signal(self, number: signal.Signals) -> None:
        if self._stopped.is_set():
            self._processes.kill()
            self._tell(f"{number.name} again: all are killed")
            return
        self._signal = number
        self._stopped.set()
        self._tell(f"{number.name}: the trainers are ended, then the owners drain; once more kills all")

    def _closed(self) -> None:
        """Nobody reads an output any more, or its disk is full."""
        if not self._stopped.is_set():
            self._signal = signal.SIGPIPE
            self._stopped.set()
            self._tell("the output takes nothing any more: the trainers are ended, then the owners drain")

    def _status_of(self, result: BaseException | None) -> int:
        """The exit status of what the work has come to."""
        match result:
            case None:
                return 0
            case ProcessFailed():
                self._tell(f"{result}; the others are ended")
                return result.status
            case asyncio.CancelledError():
                return 128 + self._signal
            case _:
                raise result

    async def _end(self) -> int:
        """Ends the trainers that still run, then the owners. Returns the exit status of an owner that fails to."""
        number = signal.SIGINT if self._signal == signal.SIGINT else signal.SIGTERM
        await asyncio.gather(*(self._end_trainer(each, number) for each in self._trainers.values()))
        # That of the directory last: the others leave the group.
        running = [each for each in self._owners if each.runs]
        failures = await asyncio.gather(*(each.end() for each in running[1:]), return_exceptions=True)
        failures += await asyncio.gather(*(each.end() for each in running[:1]), return_exceptions=True)
        failed = [each for each in failures if isinstance(each, ProcessFailed)]
        for each in failed:
            self._tell(str(each))
        return failed[0].status if failed else 0

    async def _end_trainer(self, trainer: Process, number: signal.Signals) -> None:
        if trainer.code is None and await trainer.end(number, self._plan.grace_seconds):
            self._tell(f"{trainer.name} has not ended within {self._plan.grace_seconds:g} s, and is killed")


async def _all(*each: Coroutine[Any, Any, None]) -> None:
    """Runs all to their end. Raises the first error of one, and cancels the others then."""
    tasks = [asyncio.create_task(one) for one in each]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
