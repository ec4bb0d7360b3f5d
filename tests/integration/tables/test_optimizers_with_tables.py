"""Tests of what an optimizer over tables and parameters has besides steps: schedules, states, policies."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import trainer_client as tc

IDS = torch.tensor([5, -9, 7])
PLACES = ["module", "local", "none"]
"""Where the parameters are."""


class Job:
    """A table whose rows begin with 0 and step by 1, and parameters that step by 0.5."""

    def __init__(self, ps: tc.Client) -> None:
        self.ps = ps

    async def make(self, place: str, tables: int = 1) -> tc.tables.OptimizerWithTables:
        self.tables = [
            await self.ps.table(f"table{number}", 1, tc.tables.SGD(lr=1.0), init=tc.tables.Zeros())
            for number in range(tables)
        ]
        self.weight, self.net = torch.zeros(1, requires_grad=True), await self.ps.module(nn.Linear, 1, 1, name="net")
        self.bias = (await self.net.state_dict())["bias"].item()
        self.place = place
        parameters = {"module": [*self.net.parameters()], "local": [self.weight], "none": []}[place]
        options = {"lr": 0.5} if parameters else {}
        cls = torch.optim.SGD if parameters else None
        self.opt = await self.ps.optimizer(cls, [*self.tables, *parameters], **options)
        return self.opt

    async def step(self) -> None:
        async with self.ps.context() as ctx:
            found = await self.ps.look_up(dict.fromkeys(self.tables, IDS))
            loss = torch.stack(list(found.values())).sum() + self.weight.sum()
            if self.place == "module":
                loss = loss + (await self.net(torch.zeros(1, 1))).sum()
            await ctx.backward(loss)
            await self.opt.step(ctx)

    async def moved(self) -> list[float]:
        """How far each table and the parameters have gone."""
        rows = await self.ps.look_up(dict.fromkeys(self.tables, IDS))
        bias = (await self.net.state_dict())["bias"].item() - self.bias
        own = {"module": [-bias], "local": [-self.weight.item()], "none": []}[self.place]
        return [round(each, 4) for each in [*(-each[0, 0].item() for each in rows.values()), *own]]


@pytest.fixture
def job(pair: tc.Client) -> Job:
    return Job(pair)


@pytest.mark.parametrize("place", PLACES)
async def test_a_schedule_holds_for_tables_and_parameters(job: Job, place: str) -> None:
    opt = await job.make(place, tables=2)
    schedule = await job.ps.scheduler(lr_scheduler.StepLR, opt, step_size=1, gamma=0.1, name="mine")
    assert set(schedule.tables) == {"table0", "table1"}
    first = 1.0 if place == "none" else 0.5
    assert await schedule.get_last_lr() == pytest.approx([first])
    await job.step()
    assert await schedule.step() == pytest.approx([first * 0.1])
    assert await schedule.get_last_lr() == pytest.approx([first * 0.1])
    state = await schedule.state_dict()
    await job.step()
    parameters = [] if place == "none" else [0.55]
    assert await job.moved() == [1.1, 1.1, *parameters]
    await schedule.step()
    await schedule.load_state_dict(state)
    assert (await schedule.state_dict())["tables"]["table0"]["last_epoch"] == 1
    with pytest.raises(tc.errors.InvalidArgumentError, match="state of tables"):
        await schedule.load_state_dict({**state, "tables": {}})


async def test_a_scheduler_needs_an_optimizer(job: Job) -> None:
    await job.make("none")
    for wrong in (job.tables[0], torch.optim.SGD([job.weight], lr=0.1)):
        with pytest.raises(tc.errors.InvalidArgumentError, match=r"ps\.optimizer.*table\.optimizer"):
            await job.ps.scheduler(lr_scheduler.StepLR, wrong, step_size=1)


@pytest.mark.parametrize("place", PLACES)
async def test_states_of_all_optimizers_are_kept_and_loaded(job: Job, place: str) -> None:
    opt = await job.make(place)
    state = await opt.state_dict()
    assert state["tables"]["table0"]["param_groups"][0]["lr"] == 1.0
    assert (state["parameters"] is None) == (place == "none")
    state["tables"]["table0"]["param_groups"][0]["lr"] = 10.0
    if place != "none":
        state["parameters"]["param_groups"][0]["lr"] = 20.0
    await opt.load_state_dict(state)
    await job.step()
    assert await job.moved() == ([10.0] if place == "none" else [10.0, 20.0])
    for wrong, named in (
        ({}, "keys"),
        ({**state, "tables": {"other": {}}}, "state of tables"),
        ({**state, "parameters": None if place != "none" else {}}, "parameters"),
    ):
        with pytest.raises(tc.errors.InvalidArgumentError, match=named):
            await opt.load_state_dict(wrong)
    if place != "none":
        broken = {**await opt.state_dict(), "parameters": {"state": {}, "param_groups": []}}
        broken["tables"]["table0"]["param_groups"][0]["lr"] = 7.0
        with pytest.raises(tc.errors.InvalidArgumentError):
            await opt.load_state_dict(broken)
        assert (await opt.state_dict())["tables"]["table0"]["param_groups"][0]["lr"] == 10.0


async def test_a_policy_for_tables_and_parameters_and_leaving_its_rounds(job: Job) -> None:
    opt = await job.make("module")
    await opt.set_policy(tc.policies.Sync(1))
    assert opt.parameters is not None and opt.parameters.policy == opt.tables["table0"].policy == tc.policies.Sync(1)
    await job.step()
    assert await job.moved() == [1.0, 0.5]
    await opt.leave()
    await opt.set_policy(tc.policies.Async())
    await job.step()
    assert await job.moved() == [2.0, 1.0]
    with pytest.raises(tc.errors.InvalidArgumentError):
        await opt.set_policy("sync")  # type: ignore[arg-type]


async def test_a_policy_is_refused_where_parameters_are_local(job: Job) -> None:
    opt = await job.make("local")
    with pytest.raises(tc.errors.InvalidArgumentError, match="without parameters of this process"):
        await opt.set_policy(tc.policies.Sync(1))
    assert opt.tables["table0"].policy is None
    await opt.leave()


async def test_values_are_those_of_the_parameters(job: Job) -> None:
    opt = await job.make("module")
    async with job.ps.context() as ctx:
        await ctx.backward((await job.tables[0](IDS)).sum() + (await job.net(torch.ones(1, 1))).sum())
        await opt.step(ctx, values={"loss": 3.0})
    assert (await opt.values())["loss"] == 3.0
    only = await job.ps.optimizer(None, job.tables)
    with pytest.raises(tc.errors.InvalidArgumentError, match="tables only"):
        only.values()
    with pytest.raises(AttributeError, match=r"no 'param_groups'; .*\.parameters and \.tables"):
        only.param_groups  # noqa: B018  # looking it up is what is tested


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("how", ["negative", "momentum"])
async def test_options_that_a_table_refuses_let_nothing_step(job: Job, how: str, fused: bool) -> None:
    opt = await job.make("module")
    if how == "negative":
        schedule = await job.ps.scheduler(lr_scheduler.StepLR, opt, step_size=1, gamma=-1.0)
        await schedule.step()
    else:
        # It cycles the momentum, which the table was made without.
        await job.ps.scheduler(lr_scheduler.OneCycleLR, opt, max_lr=1.0, total_steps=9)
    async with job.ps.context() as ctx:
        loss = (await job.tables[0](IDS)).sum() + (await job.net(torch.zeros(1, 1))).sum()
        with pytest.raises(tc.errors.InvalidArgumentError, match=r"is at least 0|momentum can not be"):
            if fused:
                await ctx.backward(loss, step=opt)
            else:
                await ctx.backward(loss)
                await opt.step(ctx)
    assert await job.moved() == [0.0, 0.0]
