"""An owner in a container is killed under load, and its disk fills: what it has acknowledged stays."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

import trainer_client as tc
from tests.cluster import engine
from tests.cluster.containers import Container, Owner
from tests.cluster.exact import Crew
from tests.cluster.project import Project
from tests.cluster.waiting import wait_for
from tests.ports import ReservedPort

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

SMALL_DISK: Final = Path(__file__).with_name("small_disk.yaml")

MANY: Final = 400
"""Steps of each trainer whose records a full disk of this size does not hold."""


class Disk:
    """The small disk of an owner.

    Args:
        container: Another one that has it mounted.
    """

    def __init__(self, container: Container) -> None:
        self._container = container

    def fill(self) -> None:
        """Writes a file until there is no room."""
        self._container.run("sh", "-c", "dd if=/dev/zero of=/data/filled bs=1M 2>/dev/null || true")
        assert self._container.run("sh", "-c", "df --output=avail /data | tail -n 1").strip() == "0"

    def make_room(self) -> None:
        """Removes that file."""
        self._container.run("rm", "/data/filled")


async def is_killed(owner: Owner, crew: Crew) -> None:
    """Kills the owner while trainers train; its restart policy starts it again."""
    restarts = owner.restarts
    training = asyncio.create_task(crew.train(60))
    await crew.has_taken(30)
    await asyncio.to_thread(owner.kill_inside)
    await training
    assert owner.restarts > restarts
    await crew.check()


async def refuses_changes_and_nothing_else(owner: Owner, crew: Crew) -> None:
    """The disk is full: once the log has no room, steps are refused, and what reads goes on."""
    with pytest.raises(ExceptionGroup) as raised:
        await crew.train(MANY)
    refused, others = raised.value.split(tc.errors.StorageError)
    assert refused is not None and others is None
    with pytest.raises(tc.errors.StorageError, match="the log in /data cannot be written: No space left on device"):
        await crew.step()
    await crew.forward()
    await crew.check()
    wait_for("ps1 to be healthy", lambda: owner.health == "healthy" or None, 60)
    told, status = owner.healthz(), owner.status()
    assert told["log"] == "full" and "No space left on device" in told["why"]
    assert status is not None and status.log is not None and status.log.state == "full"
    assert owner.scraped('ps_log_trouble{state="full"}') == 1
    assert owner.scraped('ps_errors_total{code="storage"}') > 0


async def goes_on(owner: Owner, crew: Crew) -> None:
    """There is room: training goes on, once a checkpoint could be written and the log be cut behind it."""
    async with asyncio.timeout(60):
        while True:
            with suppress(tc.errors.StorageError):
                await crew.step()
                break
            await asyncio.sleep(0.1)
    await crew.train(20)
    await crew.check()
    assert owner.healthz()["log"] == "writable" and owner.scraped('ps_log_trouble{state="full"}') == 0


async def test_what_was_acknowledged_outlives_kills_and_a_full_disk() -> None:
    engine.check()
    with ReservedPort() as port, Project(SMALL_DISK, PS1_PORT=str(port.number)) as project:
        project.build()
        project.say("the image is built")
        project.up("ps1", "disk")
        owner, disk = project.owners()["ps1"], Disk(project.container("disk"))
        wait_for("ps1 to be healthy", lambda: owner.health == "healthy" or None, 120)
        async with Crew(port.address, 3, project.tls) as crew:
            for _ in range(2):
                await is_killed(owner, crew)
                project.say(f"ps1 was killed; all {crew.acknowledged} acknowledged steps are there, bit by bit")
            disk.fill()
            await refuses_changes_and_nothing_else(owner, crew)
            project.say(f"the disk is full after {crew.acknowledged} steps; reads and forwards go on")
            disk.make_room()
            await goes_on(owner, crew)
            project.say("there is room, and training goes on")
            disk.fill()
            await refuses_changes_and_nothing_else(owner, crew)
            owner.kill_inside()
            disk.make_room()
            await goes_on(owner, crew)
            project.say(f"ps1 was killed on a full disk; all {crew.acknowledged} acknowledged steps are there")
        project.down()
        assert project.left() == []
        project.say("nothing is left")
