"""Pushes of replicas that are under way while their module moves."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trainer_client as tc
from ps_service.training import pushes
from tests.integration.restarting import Owner
from tests.integration.test_ended_sessions import Held
from tests.waiting import until
from trainer_client.handles.object_moves import ObjectMove

NAMES = ("ps0", "ps1")
X = torch.ones(1, 2)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[tc.Client, tc.Client]]:
    """Two clients of two owners with logs."""
    async with AsyncExitStack() as stack:
        owners = [
            await stack.enter_async_context(Owner(tmp_path / name, name, durability="interval:1")) for name in NAMES
        ]
        addresses = [each.address for each in owners]
        one, other = [await stack.enter_async_context(tc.connect(*addresses)) for _ in range(2)]
        yield one, other


async def made(ps: tc.Client, **how: Any) -> tuple[tc.RemoteModule, tc.DistributedOptimizer, tc.Replica]:
    net = await ps.module(nn.Linear, 2, 1, name="net", owner="ps0", seed=0)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=1.0)
    return net, opt, await net.replica(**how)


async def test_a_push_that_was_written_before_its_trainer_knew_of_a_move_is_sent_there(
    pair: tuple[tc.Client, tc.Client],
) -> None:
    """The first push hears of it, and the second one waits for it."""
    ps, other = pair
    net, opt, replica = await made(ps, overlap=2)
    before = (await net.state_dict())["weight"]
    await other.move("net", to="ps1", owner="ps0")
    for _ in range(2):
        replica(X).sum().backward()
        assert await replica.push(opt) is None
    assert [each and max(each.values()) for each in await replica.finish()] == [1, 2]
    assert torch.equal((await net.state_dict())["weight"], before - 1 - 1)


async def test_a_step_waits_for_gradients_that_follow_a_module(
    pair: tuple[tc.Client, tc.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients that join a pass are sent at once, and its step in the turn of the push."""
    ps, other = pair
    net, opt, replica = await made(ps)
    before = (await net.state_dict())["weight"]
    await other.move("net", to="ps1", owner="ps0")
    held = Held(monkeypatch, pushes, "read")
    async with ps.context() as ctx:
        await ctx.backward(replica(X).sum())
        push = replica._pushes.written(opt, ctx, True, True, {}, True)
        await until(held.entered.is_set)
        pushed = push.send()
        await asyncio.create_task(outside(ps), context=contextvars.Context())
        held.go_on.set()
        assert await pushed == {"ps1": 1}
    assert torch.equal((await net.state_dict())["weight"], before - 1)


async def outside(ps: tc.Client) -> None:
    """Round trips behind the step, if that does not wait."""
    for _ in range(10):
        await ps.status("ps1")


async def test_a_push_is_as_stale_as_if_its_module_had_not_moved(pair: tuple[tc.Client, tc.Client]) -> None:
    """It is of before the move, and is corrected with what was read then."""
    ps, other = pair
    net, opt, replica = await made(ps)
    _, theirs, ahead = await made(other)
    for number in range(10):
        if number == 5:
            await replica.pull()
            then = (await net.state_dict())["weight"].clone()
            await other.move("net", to="ps1", owner="ps0")
            await theirs.set_policy(tc.policies.Async(tc.policies.Compensate(0.5)))
        ahead(X).sum().backward()
        await ahead.push(theirs)
    now = (await net.state_dict())["weight"].clone()
    replica(X).sum().backward()
    stepped = await replica.push(opt)
    assert stepped is not None and (stepped["ps1"], stepped.staleness) == (11, 5)
    assert torch.equal((await net.state_dict())["weight"], now - (1 + 0.5 * (now - then)))


async def test_a_push_follows_a_module_that_has_gone_back_and_is_about_to_come_again(
    pair: tuple[tc.Client, tc.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner that the trainer knows has a copy by then, and says who has the module; its optimizer is there, too."""
    ps, other = pair
    _, opt, replica = await made(ps)

    async def push() -> int:
        replica(X).sum().backward()
        stepped = await replica.push(opt)
        assert stepped is not None
        return max(stepped.values())

    await other.move("net", to="ps1", owner="ps0")
    assert await push() == 1
    await other.move("net", to="ps0", owner="ps1")
    comes, goes_on = asyncio.Event(), asyncio.Event()
    switch = ObjectMove._switch

    async def later(move: ObjectMove, ends: float) -> None:
        comes.set()
        await goes_on.wait()
        await switch(move, ends)

    monkeypatch.setattr(ObjectMove, "_switch", later)
    moving = asyncio.ensure_future(other.move("net", to="ps1", owner="ps0"))
    await comes.wait()
    assert [await push(), await push()] == [2, 3]
    goes_on.set()
    await moving
    assert await push() == 4


async def test_a_push_of_several_modules_that_have_moved_counts_once(pair: tuple[tc.Client, tc.Client]) -> None:
    """Its step follows two requests, each of which is sent again by itself."""
    ps, other = pair
    nets = [await ps.module(nn.Linear, 2, 1, name=name, owner="ps0", seed=0) for name in ("one", "two")]
    opt = await ps.optimizer(torch.optim.SGD, [*nets[0].parameters(), *nets[1].parameters()], name="opt", lr=1.0)
    replicas = [await net.replica() for net in nets]
    model = ps.replicas(nn.ModuleList(replicas))
    before = [(await net.state_dict())["weight"].clone() for net in nets]
    for number in range(1, 5):
        await other.move("one", to=f"ps{number % 2}", owner=f"ps{1 - number % 2}")
        sum(replica(X).sum() for replica in replicas).backward()
        stepped = await model.push(opt)
        assert stepped is not None and [*stepped.values()] == [number]
    after = [(await net.state_dict())["weight"] for net in nets]
    assert torch.equal(torch.stack(after), torch.stack(before) - 4)


async def test_a_push_waits_for_a_module_of_which_it_has_not_heard_yet_that_it_has_moved(
    pair: tuple[tc.Client, tc.Client],
) -> None:
    """Its step is where the first module is by then; the request for the second has a number of the owner of before."""
    ps, other = pair
    nets = [await ps.module(nn.Linear, 2, 1, name=name, owner="ps0", seed=0) for name in ("one", "two")]
    opt = await ps.optimizer(torch.optim.SGD, [*nets[0].parameters(), *nets[1].parameters()], name="opt", lr=1.0)
    replicas = [await net.replica() for net in nets]
    model = ps.replicas(nn.ModuleList(replicas))
    before = [(await net.state_dict())["weight"].clone() for net in nets]
    await other.move("one", to="ps1", owner="ps0")
    requests, refused = ps.sessions["ps0"].requests, list[tuple[Any, Any]]()
    redirect = requests.redirect

    def late(in_flight: Any, error: Any) -> bool:
        if in_flight.operation == "add_gradients":
            refused.append((in_flight, error))
            if len(refused) == 2:
                return True
        return redirect(in_flight, error)

    requests.redirect = late
    sum(replica(X).sum() for replica in replicas).backward()
    pushed = asyncio.ensure_future(model.push(opt))
    await until(lambda: len(refused) > 1 and refused[0][0].settled)
    await ps.status()
    assert not pushed.done()
    redirect(*refused[1])
    assert await pushed == {"ps0": 1}
    after = [(await net.state_dict())["weight"] for net in nets]
    assert torch.equal(torch.stack(after), torch.stack(before) - 1)
