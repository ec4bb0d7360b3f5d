"""Tests that the values of a bar have curves: with both clients, once a second, and never more than they are."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

import trainer_client as tc
from ps_service.server import Server
from ps_service.training.reported_values import ReportedValues
from ps_wire.errors import InvalidArgumentError
from tests.integration.restarting import Owner
from tests.ps_service.clock import Clock
from tests.trainer_client.reporting.test_meter import stepped
from trainer_client.reporting import page
from trainer_client.reporting.page import PageValues
from trainer_client.reporting.progress import Progress, bar_for


def shown(owner: Server) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """The values and their versions, by optimizer and name."""
    return {
        (each.optimizer, each.name): list(zip(each.points.last_version, each.points.mean, strict=True))
        for each in owner.engine.curves.news({}).fresh
    }


async def test_what_a_loop_shows_is_on_the_page(owner: Server, ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 3, 1, name="net")
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    losses = []
    async for x in (bar := tc.progress([torch.ones(2, 3)] * 3, optimizer=opt)):
        async with ps.context() as ctx:
            loss = (await net(x)).square().mean()
            await ctx.backward(loss)
            bar.step(await opt.step(ctx, values={"samples": 2}), loss=loss)
            losses.append(loss.item())
    bar.step(None, loss=1.0)
    # This is answered behind what the bar has sent at its end, and which counts nowhere else.
    assert (await opt.values()) == {"samples": 2.0}
    assert shown(owner) == {
        ("net.optimizer", "samples"): [(1, 2.0), (2, 2.0), (3, 2.0)],
        ("net.optimizer", "loss"): [(number + 1, loss) for number, loss in enumerate(losses)],
    }


def test_with_the_blocking_client_they_are_there_at_the_end_of_the_loop() -> None:
    with tc.local() as ps:
        net = ps.module("torch.nn.Linear", 3, 1, name="net")
        opt = ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
        for x in (bar := tc.progress([torch.ones(2, 3)] * 2, optimizer=opt)):
            with ps.context() as ctx:
                ctx.backward(net(x).square().mean())
                bar.step(opt.step(ctx), share=0.5)
        (server,) = ps.unwrapped._local.servers
        assert shown(server) == {("net.optimizer", "share"): [(1, 0.5), (2, 0.5)]}


async def test_they_are_sent_once_a_second(owner: Server, ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 3, 1, name="net")
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    clock = Clock()
    bar: Progress[int] = Progress([], None, "", (), bar_for, clock, opt)
    counts = []
    for _ in range(5):
        bar.step(tc.Stepped({"ps0": 0}), loss=0.5)
        clock.now += 0.5
        await opt.values()
        counts.append(sum(map(len, shown(owner).values())))
    assert counts == [0, 0, 3, 3, 5]


async def test_a_restart_of_the_owner_neither_loses_nor_repeats_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "_SECONDS", 0.0)
    async with Owner(tmp_path / "ps0", durability="interval:1") as running, tc.connect(running.address) as ps:
        net = await ps.module("torch.nn.Linear", 3, 1, name="net")
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
        async for number in (bar := tc.progress(range(9), optimizer=opt)):
            async with ps.context() as ctx:
                stepped = await ctx.backward((await net(torch.ones(2, 3))).sum(), step=opt)
            bar.step(stepped, loss=float(number))
            if number % 4 == 3:
                await running.restart()
        await opt.values()
        assert shown(running.server) == {("net.optimizer", "loss"): [(each + 1, float(each)) for each in range(9)]}


async def test_values_of_tables_alone_have_the_optimizer_of_the_table(owner: Server, ps: tc.Client) -> None:
    items = await ps.table("items", 4, tc.tables.SGD(0.1))
    opt = await ps.optimizer(None, [items])
    with pytest.raises(InvalidArgumentError, match=r"`tables\[name\]`"):
        tc.progress([1], optimizer=opt)
    async for ids in (bar := tc.progress([torch.tensor([1, 2])], optimizer=opt.tables["items"])):
        async with ps.context() as ctx:
            await ctx.backward((await items(ids)).sum())
            bar.step(await opt.step(ctx), loss=0.25)
    await opt.tables["items"].values()
    ((about, values),) = shown(owner).items()
    assert about[1] == "loss" and values == [(1, 0.25)]


async def test_a_version_that_there_is_not_yet_counts_for_the_newest(owner: Server, ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 3, 1, name="net")
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    await opt.add_to_curves([(tc.Stepped({"ps0": 2**64 - 1}), {"loss": 1.0})])
    assert shown(owner) == {("net.optimizer", "loss"): [(0, 1.0)]}
    for name in ("", "x" * 129):
        with pytest.raises(InvalidArgumentError, match="1 to 128 characters"):
            await opt.add_to_curves([(tc.Stepped({"ps0": 1}), {name: 1.0})])


async def test_many_values_wait_for_a_thread(owner: Server, ps: tc.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    net = await ps.module("torch.nn.Linear", 3, 1, name="net")
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    threads = []
    show = ReportedValues.show

    def seen(self: ReportedValues, version: int, values: Mapping[str, float]) -> None:
        threads.append(threading.current_thread().name.startswith("ps-compute"))
        show(self, version, values)

    monkeypatch.setattr(ReportedValues, "show", seen)
    for count in (3, 1000):
        await opt.add_to_curves([(stepped(), {"loss": 1.0})] * count)
    assert threads == [False] * 3 + [True] * 1000
    ((_, points),) = shown(owner).items()
    assert owner.engine.curves.news({}).fresh[0].seen == 1003 and len(points) <= 400


async def test_what_the_owner_refuses_is_logged_once(
    owner: Server, ps: tc.Client, caplog: pytest.LogCaptureFixture
) -> None:
    net = await ps.module("torch.nn.Linear", 3, 1, name="net")
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    values = PageValues(opt, Clock())
    await ps.delete(net)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            values.add(stepped(), {"loss": 1.0})
            values.add(stepped(dropped="late"), {"loss": 2.0})
            values.close()
            await ps.status()
    (line,) = [each.message for each in caplog.records if "page" in each.message]
    assert line.startswith("the page does not get the values of this loop: ")
