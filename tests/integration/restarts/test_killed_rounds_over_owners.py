"""Rounds over several owners that are killed: all take the same gradients in the same round, as without a kill."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.policies.decisions import Changed
from tests.conftest import StartProcess
from tests.integration.restarting import Owner
from tests.integration.spanning import held, hosted, waiting
from tests.integration.support import bits
from tests.training import apart
from tests.waiting import until

NAMES = ("ps0", "ps1")
P = tc.policies
Kill = Callable[[], Awaitable[None]]
Said = list[Any]


def batch(i: int) -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(i))


class Trainer(NamedTuple):
    """A trainer of a layer on each owner."""

    ps: tc.Client
    nets: list[tc.RemoteModule]
    opt: tc.DistributedOptimizer

    async def step(self, i: int) -> tc.Stepped:
        """One pass, which is repeated if it is lost."""

        async def one(ctx: tc.Context) -> tc.Stepped:
            await self.backward(ctx, i)
            return await self.opt.step(ctx)

        return await self.ps.run(one)

    async def backward(self, ctx: tc.Context, i: int) -> None:
        await ctx.backward((await self.nets[1](await self.nets[0](batch(i)))).square().sum())


async def begun(addresses: list[str], policy: P.Policy | None) -> Trainer:
    ps = await tc.connect(*addresses)
    names = NAMES if len(addresses) > 1 else NAMES[:1] * 2
    nets = [
        await ps.module(nn.Linear, *shape, name=f"net-{shape}", owner=name, seed=1)
        for name, shape in zip(names, [(4, 4), (4, 2)], strict=True)
    ]
    parameters = [each for net in nets for each in net.parameters()]
    return Trainer(ps, nets, await ps.optimizer(optim.Adam, parameters, lr=0.1, policy=policy))


Schedule = Callable[[Trainer, Trainer, Kill, Said], Awaitable[None]]


def told(stepped: tc.Stepped) -> tuple[int, int, int, str]:
    return stepped["ps0"], stepped.staleness, stepped.counted, stepped.dropped


async def together(one: Trainer, two: Trainer, kill: Kill, said: Said) -> None:
    for i in range(0, 6, 2):
        said.extend(map(told, await asyncio.gather(one.step(i), two.step(i + 1))))
        await kill()


async def alternating(one: Trainer, two: Trainer, kill: Kill, said: Said) -> None:
    for i in range(9):
        said.append(told(await (one, two)[i % 2].step(i)))
        if i % 3 == 2:
            await kill()


async def unevenly(one: Trainer, two: Trainer, kill: Kill, said: Said) -> None:
    """The first one is ahead of the other, as far as it may be."""
    for i in range(3):
        said.append(told(await apart(one.step(10 * i))))
        await kill()
        said.append(told(await one.step(10 * i + 1)))
        said.append(told(await two.step(10 * i + 2)))
        said.append(told(await two.step(10 * i + 3)))


async def late(one: Trainer, two: Trainer, kill: Kill, said: Said) -> None:
    """The gradient of one of two trainers is a step behind."""
    for i in range(3):
        async with two.ps.context() as ctx:
            await two.backward(ctx, i)
            said.append(told(await apart(one.step(10 * i))))
            said.append(told(await two.opt.step(ctx)))
        await kill()


async def changing(one: Trainer, two: Trainer, kill: Kill, said: Said) -> None:
    """The policy changes while they train, the first time from none; one leaves, and comes again."""
    said.append(told(await one.step(100)))
    await kill()
    await two.opt.set_policy(P.Sync())
    await kill()
    await together(one, two, kill, said)
    await one.opt.set_policy(P.Quorum(3))
    await kill()
    for i in range(4):
        said.append(told(await (one, two)[i % 2].step(20 + i)))
    await kill()
    await two.opt.set_policy(P.Sync())  # a step with the one gradient that is in the open round
    await kill()
    await two.opt.leave()
    await kill()
    said.append(told(await one.step(30)))
    await kill()
    await two.opt.set_policy(P.BoundedStaleness(1))
    said.append(told(await two.step(32)))  # comes again, where the other one is
    await kill()
    said.append(told(await one.step(33)))
    await one.opt.set_policy(P.Async())
    await kill()
    said.append(told(await two.step(35)))


async def state(owners: list[Owner], policy: P.Policy | None, schedule: Schedule, kill: Kill) -> list[Any]:
    """What has to be the same with and without kills."""
    one, two = [await begun([each.address for each in owners], policy) for _ in range(2)]
    said: Said = []
    await schedule(one, two, kill, said)
    nets = [bits(await each.state_dict()) for each in one.nets]
    opt, versions = bits(await one.opt.state_dict()), [hosted(each.server).version for each in owners]
    clocks, most = hosted(owners[0].server).aggregator.membership()
    left = held(owners[1].server)
    await asyncio.gather(one.ps.close(), two.ps.close())
    return [said, nets, opt, versions, sorted(clocks.values()), most, left]


async def whole(stack: AsyncExitStack, folder: Path, **options: Any) -> list[Owner]:
    return [await stack.enter_async_context(Owner(folder / name, name, **options)) for name in NAMES]


async def nothing() -> None:
    pass


DECIDES, FOLLOWS, BOTH, ONE_OF_THEM = [(0,)], [(1,)], [(1, 0)], [(0,), (0,), (1,), (1,)]
"""Which owners are killed, in turn."""

UNDISTURBED: dict[tuple[P.Policy | None, Schedule], list[Any]] = {}
"""The states without a kill."""


@pytest.mark.parametrize(
    ("which", "policy", "schedule"),
    [
        (DECIDES, P.Sync(2), together),
        (BOTH, P.Quorum(2, reduce="sum"), alternating),
        (FOLLOWS, P.Quorum(3, stale=P.Scale()), late),
        (DECIDES, P.Quorum(3, stale=P.Compensate()), late),
        (BOTH, P.BoundedStaleness(2), unevenly),
        (BOTH, P.Async(P.Reject(0)), late),
        *((which, None, changing) for which in (ONE_OF_THEM, BOTH)),
    ],
    ids=lambda each: getattr(each, "__name__", repr(each)),
)
async def test_rounds_are_as_without_a_kill(
    tmp_path: Path, which: list[tuple[int, ...]], policy: P.Policy | None, schedule: Schedule
) -> None:
    if (policy, schedule) not in UNDISTURBED:
        async with AsyncExitStack() as stack:
            owners = await whole(stack, tmp_path / "whole")
            UNDISTURBED[policy, schedule] = await state(owners, policy, schedule, nothing)
    async with AsyncExitStack() as stack:
        owners = await whole(stack, tmp_path / "killed", durability="always")
        kills = 0

        async def kill() -> None:
            nonlocal kills
            kills += 1
            for place in which[kills % len(which)]:
                if kills % 2 == 0:
                    await asyncio.to_thread(owners[place].server.engine.checkpoints.write)
                await owners[place].crash()

        assert await state(owners, policy, schedule, kill) == UNDISTURBED[policy, schedule]


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("which", [0, 1], ids=["decides", "follows"])
async def test_an_offer_that_waits_counts_on_both_owners_or_is_made_again(
    tmp_path: Path, which: int, checkpoint: bool
) -> None:
    async with AsyncExitStack() as stack:
        owners = await whole(stack, tmp_path, durability="always")
        one, two = [await begun([each.address for each in owners], P.Sync(2)) for _ in range(2)]
        first = asyncio.create_task(one.step(1))
        await until(lambda: waiting(owners[0].server) == 1)
        assert held(owners[1].server) == 1
        if checkpoint:
            await asyncio.to_thread(owners[which].server.engine.checkpoints.write)
        await owners[which].crash()
        assert which == 0 or held(owners[1].server) == 1
        found = await asyncio.gather(first, two.step(2))
        assert [told(each) for each in found] == [(1, 0, 2, "")] * 2
        assert [hosted(each.server).version for each in owners] == [1, 1]
        await until(lambda: held(owners[1].server) == 0)
        await asyncio.gather(one.ps.close(), two.ps.close())


async def offered(trainer: Trainer, number: int, i: int) -> Any:
    """The answer of the first owner to an offer, which is not brought to the other."""
    async with trainer.ps.context() as ctx:
        await trainer.backward(ctx, i)
        rounds = trainer.opt._rounds
        assert rounds is not None
        return (await rounds._offer(ctx, number, rounds._epoch, {}, {})).reply


@pytest.mark.parametrize("has_ended", [False, True])
async def test_a_step_that_one_owner_has_made_is_made_by_the_other_although_both_are_killed(
    tmp_path: Path, has_ended: bool
) -> None:
    """The trainer could not bring the decision; another one brings it."""

    async def run(folder: Path, kill: bool, **options: Any) -> list[Any]:
        async with AsyncExitStack() as stack:
            owners = await whole(stack, folder, **options)
            one, two = [await begun([each.address for each in owners], P.Async()) for _ in range(2)]
            if has_ended and kill:  # and what is decided for that reason is in a later record
                owners[0].server.engine.durability.log.ended(one.ps.trainer)  # type: ignore[union-attr]
            assert (await offered(one, 77, 1)).version == 1
            assert [hosted(each.server).version for each in owners] == [1, 0]
            for each in owners if kill else ():
                await each.crash()
            assert held(owners[1].server) == 1
            assert told(await two.step(2))[0] == 2
            assert [hosted(each.server).version for each in owners] == [2, 2]
            assert held(owners[1].server) == 0
            nets = [bits(await each.state_dict()) for each in two.nets]
            await asyncio.gather(one.ps.close(), two.ps.close())
            return nets

    expected = await run(tmp_path / "whole", kill=False)
    assert await run(tmp_path / "killed", kill=True, durability="always") == expected


async def test_a_gradient_of_an_open_round_that_was_corrected_stays_so(tmp_path: Path) -> None:
    """Also if a checkpoint is younger than the parameters with which it was computed."""

    async def run(folder: Path, kill: bool, **options: Any) -> list[Any]:
        async with AsyncExitStack() as stack:
            owners = await whole(stack, folder, **options)
            policy = P.Quorum(2, stale=P.Compensate(3.0))
            one, two = [await begun([each.address for each in owners], policy) for _ in range(2)]
            async with two.ps.context() as ctx:
                await two.backward(ctx, 1)
                await apart(one.step(2))
                await apart(one.step(3))
                for each in owners if kill else ():
                    await asyncio.to_thread(each.server.engine.checkpoints.write)
                assert told(await two.opt.step(ctx))[1] == 1
            for each in owners if kill else ():
                await each.crash()
            await one.step(4)
            nets = [bits(await each.state_dict()) for each in two.nets]
            await asyncio.gather(one.ps.close(), two.ps.close())
            return nets

    expected = await run(tmp_path / "whole", kill=False)
    assert await run(tmp_path / "killed", kill=True, durability="always") == expected


@pytest.mark.parametrize("count", [1, 2])
async def test_a_trainer_whose_session_ended_just_before_a_kill_is_not_waited_for(tmp_path: Path, count: int) -> None:
    async with AsyncExitStack() as stack:
        owners = (await whole(stack, tmp_path, durability="always"))[:count]
        one, two = [await begun([each.address for each in owners], P.Sync()) for _ in range(2)]
        owners[0].server.engine.durability.log.ended(two.ps.trainer)  # type: ignore[union-attr]
        for each in owners:
            await each.crash()
        assert told(await one.step(1))[:3] == (1, 0, 1)
        rounds = hosted(owners[0].server).aggregator
        assert rounds is not None and rounds.membership()[0] == {one.ps.trainer: 1}
        await owners[0].crash()
        assert told(await one.step(2))[:3] == (2, 0, 1)
        await asyncio.gather(one.ps.close(), two.ps.close())


async def test_nobody_is_told_a_decision_that_the_log_does_not_have(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        owners = await whole(stack, tmp_path, durability="always")
        one, two = [await begun([each.address for each in owners], P.Async()) for _ in range(2)]
        leader = two.opt._rounds._leader  # type: ignore[union-attr]
        with owners[0].server.engine.durability.log.turn:  # type: ignore[union-attr]
            step = asyncio.create_task(offered(one, 77, 1))
            coordinator = hosted(owners[0].server).aggregator.coordinator
            await until(lambda: coordinator.version == 1)
            asked = asyncio.create_task(collected(leader.withdraw(0, 0, {})))
            await until(lambda: len(hosted(owners[0].server).aggregator.queue._events) > 0)
            known = hosted(owners[0].server).aggregator.decisions(two.ps.trainer, {}).entries
            assert [type(each.decision) for each in known] == [Changed]
        for reply in (await step, await asked):
            assert [each.WhichOneof("what") for each in reply.decisions.decisions] == ["policy", "closed"]
        await asyncio.gather(one.ps.close(), two.ps.close())


async def collected(pending: Any) -> Any:
    return await pending


async def test_gradients_that_are_not_offered_stay_dropped(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        owners = await whole(stack, tmp_path, durability="always")
        one = await begun([each.address for each in owners], P.Async())
        rounds = one.opt._rounds
        assert rounds is not None
        follower = one.opt.remotes["ps1"]
        async with one.ps.context() as ctx:
            await one.backward(ctx, 1)
            await follower.hold(ctx, 77, rounds._epoch, ())
            assert held(owners[1].server) == 1
            await follower.settle(77, rounds._epoch, None)
        await owners[1].crash()
        assert held(owners[1].server) == 0
        await one.ps.close()


async def test_steps_tell_the_version_that_their_round_has_led_to(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        owners = await whole(stack, tmp_path, durability="always")
        one, two = [await begun([each.address for each in owners], P.Async()) for _ in range(2)]
        reply = await offered(one, 77, 1)
        assert dict(await two.step(2)) == {"ps0": 2, "ps1": 2}
        rounds = one.opt._rounds
        assert rounds is not None
        assert (await rounds._settle(reply.decisions, step=reply.version))["ps1"].version == 1
        await asyncio.gather(one.ps.close(), two.ps.close())


async def test_owner_processes_that_are_killed_go_on_with_their_rounds(
    start_process: StartProcess, tmp_path: Path
) -> None:
    flags = [("--name", name, "--data-dir", str(tmp_path / name), "--durability", "interval:1") for name in NAMES]
    processes = [await start_process(*each) for each in flags]
    one, two = [await begun([each.address for each in processes], P.Sync(2)) for _ in range(2)]
    for i in range(0, 8, 2):
        steps = [asyncio.create_task(each.step(i + place)) for place, each in enumerate((one, two))]
        if i % 4 == 2:
            await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)  # maybe only one of two answers is there
            which = i // 4 % 2
            processes[which].process.kill()
            await processes[which].process.wait()
            processes[which] = await start_process(*flags[which], "--listen", processes[which].address)
        for each in await asyncio.gather(*steps):
            assert dict(each) == {"ps0": i // 2 + 1, "ps1": i // 2 + 1}
    async with AsyncExitStack() as stack:
        owners = await whole(stack, tmp_path / "whole")
        three, four = [await begun([each.address for each in owners], P.Sync(2)) for _ in range(2)]
        for i in range(0, 8, 2):
            await asyncio.gather(three.step(i), four.step(i + 1))
        for mine, other in zip(one.nets, three.nets, strict=True):
            torch.testing.assert_close(await mine.state_dict(), await other.state_dict())
        await asyncio.gather(three.ps.close(), four.ps.close())
    await asyncio.gather(one.ps.close(), two.ps.close())
