"""Tests that optimizers and schedulers are given by their names alone, on one owner and over several."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import optim

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.server import Server
from tests import hosted_models
from tests.allowed import allowed

X = torch.ones(2, 4)


@pytest.fixture
async def pair2(pair: tc.Client) -> AsyncIterator[tc.Client]:
    """Another trainer of the two owners."""
    async with tc.connect(*[each.address for each in pair.sessions.values()]) as other:
        yield other


async def step(ps: tc.Client, opt: Any, *nets: tc.RemoteModule) -> tc.Stepped:
    async with ps.context() as ctx:
        loss = torch.stack([(await net(X)).sum() for net in nets]).sum()
        await ctx.backward(loss)
        stepped: tc.Stepped = await opt.step(ctx)
        return stepped


async def test_the_name_alone_gives_the_optimizer_that_exists(ps: tc.Client, ps2: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 4, 3, name="net")
    made = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, momentum=0.9, non_finite="refuse")
    found = await ps2.optimizer(name="net.optimizer")
    assert repr(found) == repr(made)
    assert await step(ps2, found, await ps2.attach("net")) == {"ps0": 1}
    assert await step(ps, made, net) == {"ps0": 2}
    state, same = await made.state_dict(), await found.state_dict()
    assert same["param_groups"] == state["param_groups"] and len(same["state"]) == len(state["state"]) == 2
    await found.set_options(lr=0.5)
    assert (await made.state_dict())["param_groups"][0]["lr"] == 0.5


@pytest.mark.parametrize("name", ["", "shared"], ids=["named after its modules", "with a name"])
@pytest.mark.parametrize("asked", [0, 1])
async def test_it_has_its_parts_on_all_owners(pair: tc.Client, pair2: tc.Client, name: str, asked: int) -> None:
    nets = [await pair.module("torch.nn.Linear", 4, 3, name=each, owner=f"ps{i}") for i, each in enumerate("ab")]
    (a_weight, a_bias), (b_weight, b_bias) = (each.parameters() for each in nets)
    groups = [{"params": [b_weight, a_bias], "lr": 0.2}, {"params": iter([a_weight, b_bias])}]
    made = await pair.optimizer(optim.Adagrad, groups, name=name, lr=0.1)
    own_name = name or ("a.optimizer", "b.optimizer")[asked]
    found = await pair2.optimizer(name=own_name)
    assert sorted(found.remotes) == ["ps0", "ps1"]
    others = [await pair2.attach(each, owner=f"ps{i}") for i, each in enumerate("ab")]
    assert await step(pair2, found, *others) == {"ps0": 1, "ps1": 1}
    state, same = await made.state_dict(), await found.state_dict()
    assert same["param_groups"] == state["param_groups"]
    for place in range(4):
        assert torch.equal(state["state"][place]["sum"], same["state"][place]["sum"])
    assert [state["state"][place]["sum"].shape for place in range(4)] == [(3, 4), (3,), (3, 4), (3,)]
    await found.set_options(1, lr=0.7)
    assert [group["lr"] for group in (await made.state_dict())["param_groups"]] == [0.2, 0.7]


async def test_rounds_over_several_owners_count_who_takes_it_by_name(pair: tc.Client, pair2: tc.Client) -> None:
    nets = [await pair.module("torch.nn.Linear", 4, 3, name=each, owner=f"ps{i}") for i, each in enumerate("ab")]
    parameters = [each for net in nets for each in net.parameters()]
    made = await pair.optimizer(optim.SGD, parameters, lr=0.1, policy=tc.policies.Sync(trainers=2))
    with pytest.raises(tc.errors.NameConflictError, match="with the policy"):
        await pair2.optimizer(name="a.optimizer", policy=tc.policies.Sync(trainers=3))
    found = await pair2.optimizer(name="a.optimizer", policy=tc.policies.Sync(trainers=2))
    others = [await pair2.attach(each, owner=f"ps{i}") for i, each in enumerate("ab")]
    both = await asyncio.gather(step(pair, made, *nets), step(pair2, found, *others))
    assert both == [{"ps0": 1, "ps1": 1}] * 2


@pytest.mark.parametrize("name", ["", "slower"], ids=["named after its optimizer", "with a name"])
async def test_a_scheduler_is_given_by_its_name(pair: tc.Client, pair2: tc.Client, name: str) -> None:
    nets = [await pair.module("torch.nn.Linear", 4, 3, name=each, owner=f"ps{i}") for i, each in enumerate("ab")]
    opt = await pair.optimizer(optim.SGD, [each for net in nets for each in net.parameters()], lr=0.5)
    await pair.scheduler(optim.lr_scheduler.StepLR, opt, 1, gamma=0.5, name=name)
    found = await pair2.scheduler(name=name or "b.optimizer.StepLR")
    assert await found.step() == [0.25] and sorted(part.owner for part in found.remotes) == ["ps0", "ps1"]
    assert [each["lr"] for each in (await opt.state_dict())["param_groups"]] == [0.25]
    for part in opt.remotes.values():
        assert (await part.state_dict())["param_groups"][0]["lr"] == 0.25


async def test_a_client_of_some_of_its_owners_is_told_so(pair: tc.Client) -> None:
    nets = [await pair.module("torch.nn.Linear", 4, 3, name=each, owner=f"ps{i}") for i, each in enumerate("ab")]
    await pair.optimizer(optim.SGD, [each for net in nets for each in net.parameters()], lr=0.1)
    async with tc.connect(pair.sessions["ps1"].address) as alone:
        with pytest.raises(
            tc.errors.UnknownNameError, match=r"2 of the 4 parameters of 'b\.optimizer' are on owners th"
        ):
            await alone.optimizer(name="b.optimizer")


async def test_a_handle_to_an_optimizer_says_what_gives_it(ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 4, 3, name="net")
    await ps.scheduler(optim.lr_scheduler.StepLR, await ps.optimizer(optim.SGD, net.parameters(), lr=0.1), 1)
    opt, schedule = await ps.attach("net.optimizer"), await ps.attach("net.optimizer.StepLR")
    with pytest.raises(AttributeError, match=r"offers no 'step', only none\. ps\.optimizer\(name='net\.optimizer'\) g"):
        opt.step()
    with pytest.raises(AttributeError, match=r"ps\.scheduler\(name='net\.optimizer\.StepLR'\) gives it"):
        schedule.last_epoch()
    with pytest.raises(AttributeError) as caught:
        net.weight()
    assert "gives it" not in str(caught.value)


async def test_mistakes_with_names_are_answered(ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 4, 3, name="net")
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    await ps.scheduler(optim.lr_scheduler.StepLR, opt, 1)
    await ps.table("users", dim=2, max_rows=4)
    mistakes: list[tuple[Any, type[Exception], str]] = [
        (lambda: ps.optimizer(name="net.optimiser"), tc.errors.UnknownNameError, "did you mean 'net.optimizer'?"),
        (lambda: ps.optimizer(name="net"), tc.errors.InvalidArgumentError, r"is a torch\.nn\.Linear, and not an opt"),
        (
            lambda: ps.optimizer(name="net.optimizer.StepLR"),
            tc.errors.InvalidArgumentError,
            r"and not an optimizer: ps\.scheduler\(name='net\.optimizer\.StepLR'\) gives it",
        ),
        (lambda: ps.scheduler(name="net.optimizer"), tc.errors.InvalidArgumentError, r"ps\.optimizer\(name='net\.opt"),
        (lambda: ps.optimizer(), tc.errors.InvalidArgumentError, r"ps\.optimizer\(name=…\)"),
        (
            lambda: ps.optimizer(optim.SGD, name="x"),
            tc.errors.InvalidArgumentError,
            "the class and the parameters of a",
        ),
        (lambda: ps.scheduler(optim.lr_scheduler.StepLR), tc.errors.InvalidArgumentError, r"ps\.scheduler\(name=…\)"),
        (
            lambda: ps.optimizer(name="net.optimizer", lr=0.5),
            tc.errors.InvalidArgumentError,
            "gives the optimizer as it is, and takes no lr",
        ),
        (
            lambda: ps.optimizer(optim.SGD, net.parameters(), lr=0.5),
            tc.errors.NameConflictError,
            r"use it as it is with ps\.optimizer\(name='net\.optimizer'\), give",
        ),
        (
            lambda: ps.scheduler(optim.lr_scheduler.StepLR, opt, 2),
            tc.errors.NameConflictError,
            r"use it as it is with ps\.scheduler\(name='net\.optimizer\.StepLR'\), give",
        ),
    ]
    for mistake, error, text in mistakes:
        with pytest.raises(error, match=text):
            await mistake()


async def test_the_optimizer_of_a_table_belongs_to_the_table(ps: tc.Client) -> None:
    table = await ps.table("users", dim=2, max_rows=4)
    name = next(iter(table.optimizer.remotes.values())).handle.name
    with pytest.raises(tc.errors.InvalidArgumentError, match=r"the optimizer of a table: `table\.optimizer`"):
        await ps.optimizer(name=name)


async def test_the_blocking_client_gives_them_too(owner: Server) -> None:
    def run() -> tuple[Any, Any]:
        with tc.connect(owner.address) as ps:
            net = ps.module("torch.nn.Linear", 4, 3, name="net")
            opt = ps.optimizer(optim.SGD, net.parameters(), lr=0.5)
            ps.scheduler(optim.lr_scheduler.StepLR, opt, 1)
            opt, schedule = ps.optimizer(name="net.optimizer"), ps.scheduler(name="net.optimizer.StepLR")
            with ps.context() as ctx:
                ctx.backward(net(X).sum())
                return opt.step(ctx), schedule.step()

    assert await asyncio.to_thread(run) == ({"ps0": 1}, [0.05])


async def test_owners_that_start_again_still_know_all_parts(tmp_path: Path) -> None:
    @asynccontextmanager
    async def started() -> AsyncIterator[tc.Client]:
        async with AsyncExitStack() as stack:
            engines = [Engine(name, allowed(hosted_models), data_dir=tmp_path / name) for name in ("ps0", "ps1")]
            servers = [await stack.enter_async_context(Server(each, direct_port=0)) for each in engines]
            yield await stack.enter_async_context(tc.connect(*[each.address for each in servers]))

    async with started() as ps:
        nets = [await ps.module("torch.nn.Linear", 4, 3, name=each, owner=f"ps{i}") for i, each in enumerate("ab")]
        (a_weight, a_bias), (b_weight, b_bias) = (each.parameters() for each in nets)
        opt = await ps.optimizer(optim.Adagrad, [b_weight, a_bias, a_weight, b_bias], lr=0.1)
        await ps.scheduler(optim.lr_scheduler.StepLR, opt, 1)
        await step(ps, opt, *nets)
        before = await opt.state_dict()
    async with started() as ps:
        found = await ps.optimizer(name="b.optimizer")
        after = await found.state_dict()
        assert sorted(found.remotes) == ["ps0", "ps1"]
        for place in range(4):
            assert torch.equal(before["state"][place]["sum"], after["state"][place]["sum"])
        schedule = await ps.scheduler(name="a.optimizer.StepLR")
        assert await schedule.step() == [pytest.approx(0.01)]
        assert repr(schedule).endswith("on ps0, ps1>")
