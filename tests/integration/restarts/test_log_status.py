"""What an owner tells of its log: in its status, its metrics, its health, its page and its events."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from torch import nn, optim

import trainer_client as tc
from ps_service.cli import status_view
from ps_service.cli.units import size
from ps_service.monitoring import exporter
from ps_wire.status import OwnerStatus
from tests.integration.restarting import Owner
from tests.integration.restarts.test_killed import one_pass

LONG: Final = "interval:3600"


def shown(status: OwnerStatus) -> str:
    console = Console(width=200, no_color=True)
    with console.capture() as captured:
        console.print(status_view.view(status))
    return " ".join(captured.get().split())


def metrics(owner: Owner) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(generate_latest(exporter.registry(owner.server.engine)).decode()):
        for sample in family.samples:
            if sample.name.startswith("ps_log_"):
                found[".".join((sample.name, *sample.labels.values()))] = sample.value
    return found


async def asked(owner: Owner, path: str) -> tuple[int, dict[str, Any]]:
    def ask() -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(f"http://{owner.server.http_address}{path}", timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    code, body = await asyncio.to_thread(ask)
    return code, json.loads(body)


def failing(number: int) -> Any:
    def fail(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    return fail


async def test_the_status_tells_how_far_the_log_is_on_the_disk(tmp_path: Path) -> None:
    async with Owner(tmp_path, durability=LONG) as owner, tc.connect(owner.address) as ps:
        net = await ps.module(nn.Linear, 4, 2, name="net")
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        await one_pass(ps, net, opt, 0)
        await ps.durable()
        for i in range(3):
            await one_pass(ps, net, opt, i)
        status = await ps.status()
        log, (optimizer,) = status.log, status.optimizers
        assert log is not None
        assert (log.mode, log.state, log.why) == (LONG, "writable", "")
        assert log.unsynced_bytes == log.position - log.synced > 0
        assert log.unsynced_records >= 3 and log.unsynced_seconds > 0.0
        assert log.bytes >= log.position >= log.checkpoint_bytes > 0
        assert (optimizer.version, optimizer.durable_version) == (4, 1)
        lag = f"{log.unsynced_records} records with 3 versions, {size(log.unsynced_bytes)}, since "
        assert f"log {LONG}, {size(log.bytes)}; not on the disk: {lag}" in shown(status)
        told = metrics(owner)
        assert told["ps_log_unsynced_records"] == log.unsynced_records
        assert told["ps_log_unsynced_bytes"] == log.unsynced_bytes
        assert told["ps_log_unsynced_seconds"] > log.unsynced_seconds
        assert told["ps_log_bytes"] == log.bytes
        await asyncio.to_thread(owner.server.engine.checkpoints.write)
        status = await ps.status()
        log, (optimizer,) = status.log, status.optimizers
        assert log is not None
        assert (log.unsynced_records, log.unsynced_bytes, log.unsynced_seconds) == (0, 0, 0.0)
        assert (optimizer.version, optimizer.durable_version, log.checkpoint_bytes) == (4, 4, 0)
        assert "all of it is on the disk" in shown(status)
        assert metrics(owner)["ps_log_unsynced_seconds"] == 0


async def test_an_owner_without_a_log_says_so(tmp_path: Path) -> None:
    async with (
        Owner(tmp_path, durability="off", http="127.0.0.1:0") as owner,
        tc.connect(owner.address) as ps,
    ):
        net = await ps.module(nn.Linear, 4, 2, name="net")
        await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        status = await ps.status()
        assert status.log is None and status.as_plain()["log"] is None
        assert status.optimizers[0].durable_version is None
        assert "not on the disk" not in shown(status) and set(metrics(owner).values()) == {0.0}
        code, health = await asked(owner, "/healthz")
        assert code == 200 and "log" not in health


async def test_a_full_disk_is_told_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        Owner(tmp_path, durability=LONG, http="127.0.0.1:0") as owner,
        tc.connect(owner.address) as ps,
    ):
        assert owner.server._keeper is not None
        look = owner.server._keeper.look_at_log
        large = await ps.module(nn.Linear, 3000, 3000)
        assert (await asked(owner, "/healthz"))[1]["log"] == "writable"
        with monkeypatch.context() as patch:
            patch.setattr("ps_service.durability.log.disk.Disk.create", failing(errno.ENOSPC))
            with pytest.raises(tc.errors.StorageError, match="No space left on device"):
                for _ in range(3):
                    await large.load_state_dict(nn.Linear(3000, 3000).state_dict())
            await asyncio.to_thread(look)  # there is no room yet
            await asyncio.to_thread(look)
            status = await ps.status(events=100)
            assert status.log is not None and status.log.state == "full"
            assert status.log.why.endswith("cannot be written: No space left on device")
            assert "full: nothing can change (the log in " in shown(status)
            assert metrics(owner)["ps_log_trouble.full"] == 1 and metrics(owner)["ps_log_trouble.failed"] == 0
            code, health = await asked(owner, "/healthz")
            assert (code, health["log"], health["why"]) == (200, "full", status.log.why)
            assert (await large.state_dict())["weight"].shape == (3000, 3000)
            (event,) = [each for each in status.events if each.kind == "log"]
            assert event.level == "error" and event.text.endswith("is refused until there is room")
        await asyncio.to_thread(look)
        status = await ps.status(events=100)
        assert status.log is not None and (status.log.state, status.log.why) == ("writable", "")
        assert [each.level for each in status.events if each.kind == "log"] == ["error", "info"]
        assert "why" not in (await asked(owner, "/healthz"))[1]
        await large.load_state_dict(nn.Linear(3000, 3000).state_dict())


async def test_a_log_that_has_failed_is_told_until_the_owner_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        Owner(tmp_path, durability=LONG, http="127.0.0.1:0") as owner,
        tc.connect(owner.address) as ps,
    ):
        net = await ps.module(nn.Linear, 4, 2, name="net")
        with monkeypatch.context() as patch:
            patch.setattr("ps_service.durability.log.disk.Disk.sync", failing(errno.EIO))
            with pytest.raises(tc.errors.StorageError):
                await ps.durable()
        assert owner.server._keeper is not None
        await asyncio.to_thread(owner.server._keeper.look_at_log)
        status = await ps.status(events=100)
        assert status.log is not None and status.log.state == "failed" and "Input/output" in status.log.why
        assert "failed: nothing can change before a restart" in shown(status)
        assert metrics(owner)["ps_log_trouble.failed"] == 1
        code, health = await asked(owner, "/healthz")
        assert (code, health["state"], health["log"]) == (503, "serving", "failed")
        assert (await asked(owner, "/readyz"))[0] == 200
        (event,) = [each for each in status.events if each.kind == "log"]
        assert event.text.endswith("until the owner starts again, from what is on the disk")
        assert await net.state_dict()
        await owner.crash()
        assert (await asked(owner, "/healthz"))[0] == 200
        await ps.durable()
