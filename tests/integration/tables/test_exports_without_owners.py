"""Exports that follow owners which are not there for a while."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import nn

import trainer_client as tc
from tests.integration.restarting import Owner
from tests.integration.tables.exports import as_owned, as_read, brought, exporting
from tests.integration.tables.moving import table_of, train
from tests.waiting import until

IDS = torch.arange(-40, 60)


@pytest.mark.parametrize("end", ["restart", "crash"])
async def test_an_export_goes_on_when_its_owner_is_started_again(tmp_path: Path, end: str) -> None:
    async with Owner(tmp_path / "data", durability="interval:0.01") as owner, tc.connect(owner.address) as ps:
        items = await table_of(ps, "items", owners=["ps0"])
        await ps.module(nn.Linear, 2, 2, name="net", seed=1)
        await train(ps, items, IDS)
        await ps.durable()
        async with tc.connect(owner.address) as other, exporting(other, tmp_path / "out"):
            await brought(tmp_path / "out")
            await getattr(owner, end)()
            async with tc.connect(owner.address) as again:
                items = await again.table("items")
                await train(again, items, IDS[:9])
                version = await brought(tmp_path / "out")
                assert as_read(version) == await as_owned(items)
                weight = (await (await again.attach("net")).state_dict())["weight"]
                assert torch.equal(torch.tensor(version.state_dict("net")["weight"]), weight)


@pytest.mark.parametrize("begun", [False, True], ids=["at its start", "later"])
async def test_an_export_waits_for_an_owner_that_is_found_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, begun: bool
) -> None:
    options = {"durability": "interval:0.01"}
    async with Owner(tmp_path / "data", **options) as owner, tc.connect(owner.address) as ps:
        items = await table_of(ps, "items", owners=["ps0"])
        await train(ps, items, IDS)
        await ps.durable()
        async with tc.connect("ps0", directory=lambda _: owner.address, reconnect_timeout=0.1) as other:
            if not begun:
                await owner.server.stop()
            async with exporting(other, tmp_path / "out"):
                if begun:
                    await brought(tmp_path / "out")
                    await owner.server.stop()
                with caplog.at_level(logging.WARNING, "trainer_client"):
                    await until(lambda: "the export asks for its objects again" in caplog.text, 0.01)
                await owner.start()
                await train(ps, items, IDS[:9])
                assert as_read(await brought(tmp_path / "out")) == await as_owned(items)


async def test_an_export_ends_when_its_client_has_given_up_an_owner(tmp_path: Path) -> None:
    async with Owner(tmp_path / "data") as owner, tc.connect(owner.address, reconnect_timeout=0.1) as ps:
        await table_of(ps, "items", owners=["ps0"])
        going_on = ps.export(tmp_path / "out", follow=True, every=0.01)
        await brought(tmp_path / "out")
        await owner.server.stop()
        with pytest.raises(tc.errors.ClosedError, match="has given up ps0: no owner could be reached at "):
            await going_on
