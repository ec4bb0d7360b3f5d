"""A cluster of containers trains on while trainers come, die and return, a cable is pulled and owners end and begin."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from contextlib import suppress

import pytest

import trainer_client as tc
from ps_service.cli import probe
from tests.cluster import accounts, engine
from tests.cluster.containers import HTTP, Owner, Trainer
from tests.cluster.project import Project
from tests.cluster.waiting import WaitedInVain, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

STEPS = 4000
"""Enough that everything below happens while there is something left to train."""

LEASE_SECONDS = 15.0
"""Longer than a cable is out, and short enough to wait for its end."""

STOP_GRACE = 40


class Story:
    """What happens to a cluster, one thing after the other.

    Args:
        project: The cluster, which is up.
    """

    def __init__(self, project: Project) -> None:
        self.say = project.say
        self.owners = project.owners()
        self._project = project
        self._kills = self._killed_owners = 0

    @property
    def ps0(self) -> Owner:
        """The owner of the convolutions."""
        return self.owners["ps0"]

    @property
    def ps1(self) -> Owner:
        """The owner of the linear layers."""
        return self.owners["ps1"]

    def begins(self) -> None:
        """The owners are healthy and the trainers train."""
        assert {owner.health for owner in self.owners.values()} == {"healthy"}
        self._reaches(100, within=120)

    def goes_on(self, more: int = 100, within: float = 90) -> None:
        """Both owners' versions grow."""
        now = wait_for("a version from ps0", self.ps0.version, 30)
        self._reaches(now + more, within)

    def runs_without_privileges_and_tools(self) -> None:
        """The image's user is its own, and there is nothing inside to build with."""
        assert self.ps0.run("id", "-u") == "10001"
        assert self.ps0.run("sh", "-c", "command -v gcc cc c++ ld make git || echo none of them") == "none of them"

    def takes_no_strangers(self) -> None:
        """Nobody is answered without a certificate: neither in plain text, nor over TLS."""
        address = self.ps0.address()
        for tls in (None, tc.TLS(self._project.tls.ca)):
            with pytest.raises(tc.errors.UnavailableError):
                probe.status(address, 5.0, tls)
        with pytest.raises(OSError):
            urllib.request.urlopen(f"http://{self.ps0.address(HTTP)}/healthz", timeout=5.0)

    def another_trainer_comes(self) -> None:
        """A third one is started, and contributes."""
        self._project.scale_trainers(3)
        third = self._project.trainers()[2]
        wait_for(f"a step of {third}", lambda: third.steps or None, 90)
        self.say(f"{third} contributes, since version {third.steps[0].versions['ps0']}")

    def a_trainer_is_killed(self) -> Trainer:
        """One is killed; the others train on, and what it held is freed when its lease has run out."""
        before = {name: wait_for(f"the sessions of {name}", owner.sessions, 30) for name, owner in self.owners.items()}
        victim = self._project.trainers()[0]
        victim.kill()
        self._kills += 1
        self.goes_on()
        self.say("the others train on")
        for name, owner in self.owners.items():
            wait_for(
                f"{name} to free the session of {victim}",
                lambda owner=owner, name=name: owner.sessions() == before[name] - 1 or None,
                2 * LEASE_SECONDS,
            )
            status = owner.status()
            # Each of the others has one pass open at most.
            assert status is None or status.contexts <= 2, f"a context of {victim} is left on {name}"
        self.say(f"what {victim} held is freed")
        return victim

    def a_cable_is_pulled(self) -> None:
        """Cuts an owner off until the trainers have noticed, and connects it again: training goes on."""
        connected = self.ps1.connected()
        network = self.ps1.disconnect()
        wait_for("ps1 to notice that its trainers are gone", lambda: self.ps1.connected() < connected or None, 60)
        stood = wait_for("a version from ps0", self.ps0.version, 30)
        self.ps1.connect(network)
        self.say(f"ps1 was away, at version {stood} of ps0")
        self.goes_on()

    def an_owner_is_restarted(self, owner: Owner) -> None:
        """It drains, writes a checkpoint, starts from it and trains on."""
        before, checkpoints = owner.version(), owner.checkpoints
        owner.restart(STOP_GRACE)
        after = wait_for(f"{owner} to serve again", owner.version, 60)
        assert before is None or before <= after, "it goes on where it was"
        (newest,) = owner.checkpoints - checkpoints
        assert f"resumes from /data/{newest} " in owner.log
        wait_for(f"{owner} to be healthy again", lambda: owner.health == "healthy" or None, 60)
        self.say(f"{owner} is back" + (f", at version {after}" if after else ""))
        self.goes_on()

    def an_owner_is_killed(self, owner: Owner) -> None:
        """It is killed under load, and started again: it has what trainers were told, and they train on."""
        owner.kill()
        trainers = self._project.trainers()
        self._kills += len(trainers)
        told = max(step.versions.get(owner.service, 0) for trainer in trainers for step in trainer.steps)
        owner.start()
        after = wait_for(f"{owner} to serve again", owner.version, 60)
        assert told <= after, "it has lost what it had acknowledged"
        assert "records of its log" in owner.log
        wait_for(f"{owner} to be healthy again", lambda: owner.health == "healthy" or None, 60)
        self.say(f"{owner} was killed and is back, at version {after}; {told} had been acknowledged")
        self._killed_owners += 1
        self.goes_on()

    def a_trainer_returns(self, trainer: Trainer) -> None:
        """The directory, which was restarted too, still tells it where the owners are."""
        before = len(trainer.steps)
        trainer.start()
        wait_for(f"a step of {trainer}, which was started again", lambda: len(trainer.steps) > before or None, 90)
        self.say(f"{trainer} is back")

    def ends(self) -> None:
        """All trainers have finished, the network has learnt, each step was told once, and nothing is held any more."""
        trainers = self._project.trainers()
        assert all(trainer.state == "running" for trainer in trainers), "training was over too early: raise STEPS"
        self._train_on_to_the_end(trainers)
        for trainer in trainers:
            assert (trainer.exit_code, "Traceback" in trainer.log) == (0, False), trainer.log[-2000:]
            assert trainer.accuracy is not None and trainer.accuracy >= 0.97, trainer.log[-2000:]
        self.say(f"accuracies: {', '.join(f'{trainer.accuracy:.4f}' for trainer in trainers)}")
        steps = [step for trainer in trainers for step in trainer.steps]
        for name in ("ps0", "ps1"):
            owner = self.owners[name]
            final = wait_for(f"a version from {name}", owner.version, 30)
            assert final >= STEPS and owner.scraped_version() == final
            accounts.check(name, steps, final, self._kills)
            self.say(f"{name} is at version {final}, and has told each to one trainer")
        self._nothing_is_held()

    def _train_on_to_the_end(self, trainers: list[Trainer]) -> None:
        """Waits until they have ended, for as long as that takes while one or the other takes steps."""
        taken = -1
        while (now := sum(len(trainer.steps) for trainer in trainers)) > taken:
            taken = now
            with suppress(WaitedInVain):
                for trainer in trainers:
                    wait_for(f"{trainer} to end", lambda trainer=trainer: _ended(trainer), 60)
                return
        raise WaitedInVain(f"no trainer has taken a step for 60 s, and not all have ended: {trainers}")

    def the_trainers_noticed_little(self) -> None:
        """Each ran at most one pass again for each owner that was killed, and none had to attach again."""
        for trainer in self._project.trainers():
            again = [line for line in trainer.log.splitlines() if "again" in line]
            lost = [line for line in again if line.startswith("the pass is run again") and "was killed" in line]
            assert again == lost and len(lost) <= self._killed_owners, f"{trainer} had to begin again: {again}"

    def _nothing_is_held(self) -> None:
        members = {"directory": 3, "ps0": 1, "ps1": 1}  # the owners' own sessions with each other
        for name, owner in self.owners.items():
            wait_for(
                f"the last trainer's goodbye to {name}",
                lambda owner=owner, name=name: owner.sessions() == members[name] or None,
                2 * LEASE_SECONDS,
            )
            status = wait_for(f"the status of {name}", owner.status, 30)
            assert (status.contexts, status.kept_answers) == (0, 0)
            assert owner.health == "healthy", "owners stay"

    def _reaches(self, version: int, within: float) -> None:
        for name in ("ps0", "ps1"):
            owner = self.owners[name]
            wait_for(f"version {version} on {name}", lambda owner=owner: _at_least(owner.version, version), within)


def _at_least(look: Callable[[], int | None], wanted: int) -> int | None:
    found = look()
    return found if found is not None and found >= wanted else None


def _ended(trainer: Trainer) -> bool | None:
    return True if trainer.exit_code is not None else None


def test_training_goes_on_whatever_happens() -> None:
    engine.check()
    with Project(
        PS_TRAINER_STEPS=str(STEPS),
        PS_TRAINER_LOG_EVERY="1",
        PS_LEASE_SECONDS=f"{LEASE_SECONDS:g}",
        PS_STOP_GRACE=f"{STOP_GRACE}s",
    ) as project:
        project.build()
        project.say("the image is built")
        project.up()
        project.say("the owners are healthy")
        story = Story(project)
        story.begins()
        project.say("the trainers train")
        story.runs_without_privileges_and_tools()
        story.takes_no_strangers()
        story.another_trainer_comes()
        victim = story.a_trainer_is_killed()
        story.a_cable_is_pulled()
        story.an_owner_is_restarted(story.ps0)
        story.an_owner_is_restarted(story.ps1)
        story.an_owner_is_killed(story.ps0)
        story.an_owner_is_killed(story.ps1)
        story.an_owner_is_restarted(story.owners["directory"])
        story.an_owner_is_killed(story.owners["directory"])
        story.a_trainer_returns(victim)
        story.ends()
        story.the_trainers_noticed_little()
        project.down()
        assert project.left() == []
        project.say("nothing is left")
