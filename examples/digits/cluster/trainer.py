"""A trainer of the cluster, which takes steps until all trainers together have taken enough."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import torch

import trainer_client as tc
from examples.digits.cluster.messages import Accuracy, Step
from examples.digits.cluster.network import Network
from examples.digits.cluster.settings import Settings
from examples.digits.data import Digits, Part, bend

LONGEST_STREAK = 20
"""Most attempts in a row to take a step with the same batch."""


class Trainer:
    """Trains a network together with other trainers, until it is trained or `stop` is called.

    Args:
        settings: The owners of the network, and the number of steps.
        digits: The training digits and the held-out digits.
    """

    def __init__(self, settings: Settings, digits: Digits) -> None:
        self._settings = settings
        self._digits = digits
        self._steps = 0
        self._in_pass = False
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Trains and evaluates, or trains until `stop` is called.

        Raises:
            tc.PsError: An owner did not come back in time, or has refused a request.
        """
        self._task = asyncio.current_task()
        settings, patience = self._settings, self._settings.patience
        times = {"timeout": patience, "connect_timeout": patience, "reconnect_timeout": patience}
        try:
            async with tc.connect(*settings.owners, directory=settings.directory, **times) as ps:
                network = await self._train(ps)
                if not self._stopping:
                    say(Accuracy(await network.accuracy(self._digits.held_out)))
        except asyncio.CancelledError:
            if not self._stopping:
                raise
        if self._stopping:
            say(f"stopped by a signal after {self._steps} steps; goodbye")

    def stop(self) -> None:
        """Stops after the running pass, which may take `grace` seconds more. Called on the event loop."""
        assert self._task is not None
        self._stopping = True
        if self._in_pass:
            asyncio.get_running_loop().call_later(self._settings.grace, self._give_up)
        else:
            self._task.cancel()

    def _give_up(self) -> None:
        if self._in_pass and self._task is not None:
            say(f"the pass did not end within {self._settings.grace:g} s; it is given up")
            self._task.cancel()

    async def _train(self, ps: tc.Client) -> Network:
        settings = self._settings
        network = await Network.attach(ps, settings)
        versions = await network.versions()
        say(f"trains on {', '.join(settings.owners)} with seed {settings.seed}; {_total(versions, settings)}")
        batches = _batches(self._digits.train, settings)
        while min(versions.values()) < settings.steps and not self._stopping:
            network, loss, versions = await self._learn(network, next(batches))
            self._steps += 1
            if self._steps % settings.log_every == 0:
                say(Step(self._steps, loss, versions))
        if not self._stopping:
            say(f"has taken {self._steps} steps; {_total(versions, settings)}")
        return network

    async def _learn(self, network: Network, batch: Part) -> tuple[Network, float, dict[str, int]]:
        """Takes one step with a batch; repeats it if it is lost."""
        self._in_pass = True
        try:
            for _ in range(LONGEST_STREAK):
                try:
                    return network, *await network.learn(batch)
                except tc.errors.ContextLostError as error:
                    say(f"the pass is run again: {error}")
                except (tc.errors.SessionLostError, tc.errors.StaleHandleError) as error:
                    say(f"attaches again: {error}")
                    network = await Network.attach(network.ps, self._settings)
        finally:
            self._in_pass = False
        raise tc.errors.ContextLostError(f"one batch after the other was lost, {LONGEST_STREAK} times in a row")


def say(what: object) -> None:
    """Writes a line and flushes it, because a pipe would be block-buffered."""
    print(what, flush=True)


def _total(versions: dict[str, int], settings: Settings) -> str:
    told = " ".join(f"{owner}={version}" for owner, version in versions.items())
    return f"of {settings.steps} steps all trainers have taken {told}"


def _batches(part: Part, settings: Settings) -> Iterator[Part]:
    """Yields random, slightly distorted digits without end, so that trainers need not know of each other."""
    generator = torch.Generator().manual_seed(settings.seed)
    while True:
        chosen = part[torch.randint(len(part), (settings.batch_size,), generator=generator)]
        yield Part(bend(chosen.images, generator), chosen.labels)
