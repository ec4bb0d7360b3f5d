"""Tests that a named object can be put in the place of another one, and what handles to that say."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import optim

import trainer_client as tc
from tests.integration.support import bits

LINEAR = "torch.nn.Linear"


async def names(ps: tc.Client, owner: str = "") -> list[str]:
    return sorted(each.name for each in (await ps.status(owner)).objects)


async def step(ps: tc.Client, net: tc.RemoteModule, opt: tc.DistributedOptimizer) -> dict[str, int]:
    async with ps.context() as ctx:
        await ctx.backward((await net(torch.ones(1, 2))).sum())
        return dict(await opt.step(ctx))


def stale(*texts: str) -> Any:
    return pytest.raises(tc.errors.StaleHandleError, match=".*".join(map(re.escape, texts)))


async def test_a_module_takes_the_place_of_another(ps: tc.Client) -> None:
    net = await ps.module(LINEAR, 2, 3, name="net")
    wide = await ps.module(LINEAR, 2, 5, name="net", replace=True)
    assert (await wide(torch.ones(1, 2))).shape == (1, 5)
    assert await names(ps) == ["net"]
    with stale("'net' was replaced", "Get a handle to the new one with ps.module(…) or ps.attach('net')"):
        await net(torch.ones(1, 2))
    assert await ps.attach("net") == wide


async def test_one_that_was_made_from_the_same_is_used_as_it_is(ps: tc.Client, ps2: tc.Client) -> None:
    nets = [await each.module(LINEAR, 2, 3, name="net", replace=True) for each in (ps, ps2, ps)]
    assert nets[0] == nets[1] == nets[2]
    opts = [await each.optimizer(optim.SGD, nets[0].parameters(), lr=0.1, replace=True) for each in (ps, ps, ps)]
    assert await step(ps, nets[0], opts[0]) == {"ps0": 1}
    assert await step(ps, nets[0], opts[2]) == {"ps0": 2}


async def begun_anew(ps: tc.Client) -> tc.RemoteModule:
    with suppress(tc.errors.UnknownNameError):
        await ps.delete("net")
    return await ps.module(LINEAR, 2, 3, name="net", seed=0)


async def test_a_second_run_continues_with_replace_and_begins_anew_after_a_delete(ps: tc.Client) -> None:
    net = await begun_anew(ps)
    assert net.was_made
    begun = bits(await net.state_dict())
    await step(ps, net, await ps.optimizer(optim.Adam, net.parameters(), lr=0.1))
    trained = bits(await net.state_dict())
    assert trained != begun
    again = await ps.module(LINEAR, 2, 3, name="net", seed=0, replace=True)
    opt = await ps.optimizer(optim.Adam, again.parameters(), lr=0.1, replace=True)
    assert not again.was_made and bits(await again.state_dict()) == trained
    assert await step(ps, again, opt) == {"ps0": 2}, "the same optimizer"
    anew = await begun_anew(ps)
    assert anew.was_made and bits(await anew.state_dict()) == begun
    assert await step(ps, anew, await ps.optimizer(optim.Adam, anew.parameters(), lr=0.1)) == {"ps0": 1}


async def test_an_optimizer_of_some_parameters_is_beside_that_of_all(ps: tc.Client) -> None:
    net = await ps.module(LINEAR, 2, 3, name="net")
    weight, bias = net.parameter("weight"), net.parameter("bias")
    every = await ps.optimizer(optim.Adam, net.parameters(), lr=0.1)
    some = [await ps.optimizer(optim.SGD, [weight], lr=0.2) for _ in range(2)]
    await ps.optimizer(optim.SGD, [bias], lr=0.2)
    first, *others = sorted(each.name for each in (await ps.status()).optimizers)
    assert first == "net.optimizer" and all(re.fullmatch(r"net\.optimizer-[0-9a-f]{8}", each) for each in others)
    assert len(others) == 2, "a call for the same parameters attaches"
    assert await step(ps, net, every) == {"ps0": 1}
    assert await step(ps, net, some[0]) == {"ps0": 1} and await step(ps, net, some[1]) == {"ps0": 2}
    with pytest.raises(tc.errors.NameConflictError, match="give yours another name with name="):
        await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, name="second")


async def test_the_same_parameters_in_another_order_are_no_second_optimizer(ps: tc.Client, ps2: tc.Client) -> None:
    async def weights(client: tc.Client) -> list[tc.RemoteParameter]:
        nets = [await client.module(LINEAR, 2, 3, name=name) for name in ("one", "two")]
        return [net.parameter("weight") for net in nets]

    here, there = await weights(ps), await weights(ps2)
    await ps.optimizer(optim.Adam, here, lr=0.1)
    await ps2.optimizer(optim.Adam, there, lr=0.1)
    wanted = r"parameters in the order=\['one.weight', 'two.weight'\], not \['two.weight', 'one.weight'\]"
    with pytest.raises(tc.errors.NameConflictError, match=wanted):
        await ps2.optimizer(optim.Adam, there[::-1], lr=0.1)
    with pytest.raises(tc.errors.NameConflictError, match="made with other arguments"):
        await ps2.optimizer(optim.Adam, [{"params": each} for each in there], lr=0.1)
    (only,) = (await ps.status()).optimizers
    second = await ps2.optimizer(optim.Adam, there[::-1], lr=0.1, name="second")
    assert await second.state_dict() and only.name.startswith("one+two.optimizer-")


async def test_a_module_goes_with_its_optimizer_and_schedule(ps: tc.Client) -> None:
    net = await ps.module(LINEAR, 2, 3, name="net")
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    schedule = await ps.scheduler(optim.lr_scheduler.StepLR, opt, 10)
    wide = await ps.module(LINEAR, 2, 5, name="net", replace=True)
    assert await names(ps) == ["net"]
    with stale("was removed with 'net', which was replaced", "ps.module(…), and this with ps.optimizer(…)"):
        await opt.set_options(lr=0.2)
    with stale("and this with ps.scheduler(…)"):
        await schedule.step()
    assert await step(ps, wide, await ps.optimizer(optim.SGD, wide.parameters(), lr=0.1)) == {"ps0": 1}


async def test_an_optimizer_takes_the_place_of_another_and_parameters_stay(ps: tc.Client, ps2: tc.Client) -> None:
    net = await ps.module(LINEAR, 2, 3, name="net")
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    await step(ps, net, opt)
    before = bits(await net.state_dict())
    with pytest.raises(tc.errors.NameConflictError, match=r"made with lr=0\.1, not 0\.01.*with replace=True"):
        await ps2.optimizer(optim.SGD, net.parameters(), lr=0.01)
    new = await ps2.optimizer(optim.Adam, (await ps2.attach("net")).parameters(), lr=0.01, replace=True)  # type: ignore[attr-defined]
    assert bits(await net.state_dict()) == before
    with stale("'net.optimizer' was replaced", "Get a handle to the new one with ps.optimizer(…)"):
        await step(ps, net, opt)
    assert bits(await net.state_dict()) == before, "a step of the old one changed nothing"
    assert await step(ps2, await ps2.module(LINEAR, 2, 3, name="net"), new) == {"ps0": 1}


async def test_a_step_that_waits_for_others_learns_that_its_optimizer_was_replaced(
    ps: tc.Client, ps2: tc.Client
) -> None:
    net = await ps.module(LINEAR, 2, 3, name="net")
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, policy=tc.policies.Sync(2))
    async with ps.context() as ctx:
        await ctx.backward((await net(torch.ones(1, 2))).sum())
        waiting = opt.step(ctx)
        await ps.status()  # the step was sent before, and is answered after
        await ps2.optimizer(optim.SGD, (await ps2.attach("net")).parameters(), lr=0.2, replace=True)  # type: ignore[attr-defined]
        with stale("deleted or replaced", "make one with ps.optimizer(…)"):
            await waiting


async def test_a_schedule_takes_the_place_of_another(ps: tc.Client) -> None:
    net = await ps.module(LINEAR, 2, 3, name="net")
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    await ps.scheduler(optim.lr_scheduler.StepLR, opt, 10)
    schedule = await ps.scheduler(optim.lr_scheduler.StepLR, opt, 1, gamma=0.5, replace=True)
    assert await schedule.step() == [0.05]


async def test_what_cannot_be_made_replaces_nothing(ps: tc.Client) -> None:
    net = await ps.module(LINEAR, 2, 3, name="net")
    with pytest.raises(tc.errors.RemoteError):
        await ps.module(LINEAR, -2, 3, name="net", replace=True)
    assert (await net(torch.ones(1, 2))).shape == (1, 3)


async def test_a_deleted_object_says_how_to_make_it_again(ps: tc.Client) -> None:
    net = await ps.module(LINEAR, 2, 3, name="net")
    await ps.delete("net")
    with stale("'net' was deleted. Make it again with ps.module(…)"):
        await net(torch.ones(1, 2))


async def test_an_optimizer_over_owners_is_replaced_on_all_of_them(pair: tc.Client) -> None:
    first = await pair.module(LINEAR, 2, 3, name="net", owner="ps0")
    second = await pair.module(LINEAR, 3, 1, name="net", owner="ps1")

    async def make(lr: float, replace: bool = False) -> tc.DistributedOptimizer:
        groups = [{"params": first.parameters()}, {"params": second.parameters(), "lr": lr}]
        return await pair.optimizer(optim.SGD, groups, lr=0.1, policy=tc.policies.Sync(1), replace=replace)

    async def train(opt: tc.DistributedOptimizer) -> dict[str, int]:
        async with pair.context() as ctx:
            await ctx.backward((await second(await first(torch.ones(1, 2)))).sum())
            return dict(await opt.step(ctx))

    old = await make(0.1)
    assert [await train(old) for _ in range(3)][-1] == {"ps0": 3, "ps1": 3}
    with pytest.raises(tc.errors.NameConflictError):
        await make(0.2)
    new = await make(0.2, replace=True)
    assert [await train(new) for _ in range(2)] == [{"ps0": 1, "ps1": 1}, {"ps0": 2, "ps1": 2}]
    with pytest.raises(tc.errors.StaleHandleError):
        await train(old)


async def test_a_table_takes_the_place_of_another_also_on_fewer_owners(pair: tc.Client) -> None:
    items = await pair.table("items", 4)
    with pytest.raises(tc.errors.NameConflictError, match=r"dim=4, not 8.*replace=True"):
        await pair.table("items", 8)
    new = await pair.table("items", 8, owners=["ps1"], replace=True)
    assert (await new(torch.tensor([7]))).shape == (1, 8)
    assert await names(pair, "ps0") == []
    assert await names(pair, "ps1") == ["items"]
    with stale("'items' was", "ps.table(…)"):
        await items(torch.arange(20))
    assert (await pair.table("items", 8, owners=["ps1"], replace=True)).owners == ["ps1"]
