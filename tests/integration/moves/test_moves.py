"""Tests of named objects that move from one owner to another while trainers train."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from contextvars import Context
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import trainer_client as tc
from ps_wire.v1 import operations_pb2 as pb
from tests.integration.restarting import TALLY, WEIGHTED, Owner
from tests.integration.support import bits
from trainer_client.handles.object_moves import ObjectMove

DURABLE = "interval:1"


@pytest.fixture
async def addresses(tmp_path: Path) -> AsyncIterator[list[str]]:
    """Where two owners with logs listen."""
    async with AsyncExitStack() as stack:
        made = [
            await stack.enter_async_context(Owner(tmp_path / name, name, durability=DURABLE)) for name in ("ps0", "ps1")
        ]
        yield [each.address for each in made]


class Model(NamedTuple):
    """Two modules, of which the second takes the result of the first, which stays on the owner."""

    first: Any
    second: Any
    opt: Any

    @property
    def owners(self) -> set[str]:
        return {self.first.owner, self.second.owner, *self.opt.remotes}

    async def train(self, ps: tc.Client, number: int) -> float:
        """One pass."""
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(number))
        async with ps.context() as ctx:
            loss = (await self.second(self.first(x))).square().mean()
            await ctx.backward(loss, step=self.opt)
        return loss.item()

    async def state(self) -> Any:
        modules = [bits(await each.state_dict()) for each in (self.first, self.second)]
        return modules, bits((await self.opt.state_dict())["state"])


async def model(ps: tc.Client, name: str) -> Model:
    first = await ps.module(nn.Linear, 4, 8, name=name, seed=1)
    second = await ps.module(nn.Linear, 8, 3, name=f"{name}-b", seed=2)
    opt = await ps.optimizer(torch.optim.Adam, [*first.parameters(), *second.parameters()], name=f"{name}-opt", lr=0.1)
    return Model(first, second, opt)


async def test_handles_go_on_with_the_other_owner(addresses: list[str]) -> None:
    async with tc.connect(*addresses) as ps, tc.connect(*addresses) as other:
        found = []
        for name in ("plain", "moved"):
            own, its = await model(ps, name), await model(other, name)
            losses = []
            for number in range(12):
                if name == "moved" and number == 4:
                    moved = await ps.move("moved", to="ps1")
                    assert sorted(moved.names) == ["moved", "moved-b", "moved-opt"]
                    assert (moved.source, moved.target) == ("ps0", "ps1")
                    assert moved.bytes > 0
                    assert moved.pause <= 0.2
                if name == "moved" and number == 8:
                    await other.move(its.first, to="ps0")
                losses.append(await (its.train(other, number) if number % 2 else own.train(ps, number)))
            found.append((losses, await own.state(), await its.state()))
        assert found[0] == found[1]
        assert own.owners == its.owners == {"ps0"}


async def test_an_optimizer_that_has_moved_is_given_by_its_name(addresses: list[str]) -> None:
    async with tc.connect(*addresses) as ps, tc.connect(*addresses) as other:
        own = await model(ps, "net")
        await own.train(ps, 0)
        await ps.move(own.opt, to="ps1")
        found = await other.optimizer(name="net-opt")
        assert list(found.remotes) == ["ps1"]
        its = Model(await other.attach("net"), await other.attach("net-b"), found)
        await its.train(other, 1)
        await own.train(ps, 2)
        assert await own.state() == await its.state() and found.remotes["ps1"].handle == own.opt.remotes["ps1"].handle


@pytest.mark.parametrize("back", [False, True], ids=["on", "round"])
async def test_a_trainer_that_has_missed_several_moves_follows_all(
    addresses: list[str], tmp_path: Path, back: bool
) -> None:
    async with Owner(tmp_path / "ps2", "ps2", durability=DURABLE) as third:
        everywhere = [*addresses, third.address]
        async with tc.connect(*everywhere) as ps, tc.connect(*everywhere) as other:
            own, its = await model(ps, "net"), await model(other, "net")
            await own.train(ps, 0)
            moves = ["ps1", "ps2", "ps0", "ps1"] if back else ["ps1", "ps2"]
            for source, to in itertools.pairwise(["ps0", *moves]):
                await ps.move("net", to=to, owner=source)
            await asyncio.gather(*(its.second(its.first(torch.ones(1, 4))) for _ in range(3)))
            await its.train(other, 1)
            await own.train(ps, 2)
            assert await own.state() == await its.state()
            assert own.owners == its.owners == {moves[-1]}


async def test_objects_move_while_trainers_train(addresses: list[str]) -> None:
    """Each trainer has a model of its own, so that the order of their steps does not matter."""
    counts = [10, 10]

    async def program(prefix: str, moves: int) -> Any:
        async with AsyncExitStack() as stack:
            mover, *trainers = [await stack.enter_async_context(tc.connect(*addresses)) for _ in range(3)]
            models = [await model(ps, f"{prefix}{number}") for number, ps in enumerate(trainers)]
            done = asyncio.Event()
            losses: list[list[float]] = [[], []]

            async def run(number: int) -> None:
                while len(losses[number]) < counts[number] or not done.is_set():
                    at = len(losses[number]) * 2 + number
                    losses[number].append(await models[number].train(trainers[number], at))

            async def move() -> None:
                for turn in range(moves):
                    source, target = ("ps0", "ps1") if turn % 2 == 0 else ("ps1", "ps0")
                    for number in range(2):
                        moved = await mover.move(f"{prefix}{number}", to=target, owner=source)
                        assert moved.pause <= 0.2
                done.set()

            await asyncio.gather(run(0), run(1), move())
            counts[:] = [len(each) for each in losses]
            assert [each.owners for each in models] == [{"ps0"} if moves % 2 == 0 else {"ps1"}] * 2
            return losses, [await each.state() for each in models]

    moved = await program("moved", 2)
    assert moved == await program("plain", 0)


async def test_what_belongs_together_moves_together(addresses: list[str]) -> None:
    async with tc.connect(*addresses) as ps, tc.connect(*addresses) as other:
        found = []
        for name in ("plain", "moved"):
            first = await ps.module(nn.Linear, 4, 8, name=f"{name}-a", seed=1)
            second = await ps.module(nn.BatchNorm1d, 8, name=f"{name}-b")
            opt = await ps.optimizer(
                torch.optim.SGD, [*first.parameters(), *second.parameters()], name=f"{name}-opt", lr=0.5, momentum=0.9
            )
            schedule = await ps.scheduler(lr_scheduler.StepLR, opt, step_size=2, gamma=0.5)
            extra = await ps.optimizer(torch.optim.SGD, second.parameters(), name=f"{name}-extra", lr=0.25)
            losses = []
            for number in range(8):
                if name == "moved" and number == 3:
                    moved = await other.move("moved-opt", to="ps1")
                    assert sorted(moved.names) == [f"moved-{each}" for each in ("a", "b", "extra", "opt", "opt.StepLR")]
                if number == 5:
                    await opt.set_options(momentum=0.5)
                x = torch.randn(5, 4, generator=torch.Generator().manual_seed(number))
                async with ps.context() as ctx:
                    loss = (await second(first(x))).square().mean()
                    await ctx.backward(loss)
                    losses.append((loss.item(), list((await opt.step(ctx)).values())))
                    await extra.step(ctx)
                losses.append(await schedule.step())
            states = [bits(await each.state_dict()) for each in (first, second)]
            found.append((losses, states, bits((await opt.state_dict())["state"]), await schedule.get_last_lr()))
        assert found[0] == found[1]
        assert {first.owner, second.owner, *opt.remotes, *extra.remotes} == {"ps1"}


async def test_plain_objects_and_untrained_modules_move(addresses: list[str]) -> None:
    async with tc.connect(*addresses) as ps, tc.connect(*addresses) as other:
        tally, its = await ps.create(TALLY, 3, name="tally"), await other.create(TALLY, 3, name="tally")
        relu = await ps.module(nn.ReLU, name="relu")
        assert await tally.add(2) == 5
        await ps.move("tally", to="ps1")
        assert [await tally.add(), await its.add(), await tally.add()] == [6, 7, 8]
        await other.move("relu", to="ps1")
        async with ps.context() as ctx:
            x = torch.randn(3, requires_grad=True)
            await ctx.backward((await relu(x)).sum())
        # An owner that is asked by the name sends on, and another one is made where the first was.
        assert (await (await ps.attach("tally", owner="ps0")).add()) == 9
        await other.delete("tally", owner="ps0")
        assert (await ps.create(TALLY, 1, name="tally", owner="ps0")).owner == "ps1"


@pytest.mark.parametrize("in_pass", [False, True], ids=["push", "push in a pass"])
async def test_replicas_follow_their_module(addresses: list[str], in_pass: bool) -> None:
    async with tc.connect(*addresses) as ps, tc.connect(*addresses) as other:
        found = []
        for name in ("plain", "moved"):
            net = await ps.module(nn.Linear, 4, 3, name=name, seed=1)
            opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, momentum=0.9)
            replica = await net.replica()
            losses = []
            for number in range(6):
                if name == "moved" and number in (2, 4):
                    await other.move(name, to=f"ps{number % 4 // 2}", owner=f"ps{1 - number % 4 // 2}")
                x = torch.randn(5, 4, generator=torch.Generator().manual_seed(number))
                if in_pass:
                    async with ps.context() as ctx:
                        loss = replica(x).square().mean()
                        await ctx.backward(loss)
                        await replica.push(opt, context=ctx)
                else:
                    replica.zero_grad()
                    loss = replica(x).square().mean()
                    loss.backward()
                    await replica.push(opt)
                losses.append(loss.item())
            found.append((losses, bits(await net.state_dict())))
        assert found[0] == found[1]
        assert net.owner == "ps0"


@pytest.mark.parametrize("what", ["anonymous", "policy", "two owners", "table", "stateless", "name", "no such", "same"])
async def test_what_cannot_move_is_refused_and_stays(addresses: list[str], what: str) -> None:
    async with tc.connect(*addresses) as ps:
        net = await ps.module(nn.Linear, 4, 3, name="net", seed=1)
        to, name, pattern = "ps1", "net", ""
        match what:
            case "anonymous":
                held = await ps.create(WEIGHTED, torch.ones(3, 2), net)
                assert held.name == ""
                pattern = "an anonymous .*Weighted belongs to it; only named objects move"
            case "policy":
                await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, policy=tc.policies.Sync())
                pattern = "has the policy Sync"
            case "two owners":
                more = await ps.module(nn.Linear, 3, 1, name="more", owner="ps1")
                await ps.optimizer(torch.optim.SGD, [*net.parameters(), *more.parameters()], lr=0.1)
                pattern = "has parts on the owners ps0, ps1"
            case "table":
                await ps.table("items", 4, owners=["ps0"])
                name, pattern = "items", "rows of tables move by themselves"
            case "stateless":
                await ps.create("tests.hosted_models.Counter", name="counter")
                name, pattern = "counter", "has no state_dict and load_state_dict"
            case "name":
                await ps.module(nn.Linear, 1, 1, name="net", owner="ps1")
                pattern = "another object with the name 'net'"
            case "no such":
                name, pattern = "nothing", "hosts nothing under the name 'nothing'"
            case "same":
                to, pattern = "ps0", "'ps0' has them"
        before = bits(await net.state_dict())
        with pytest.raises(tc.errors.PsError, match=pattern):
            await ps.move(name, to=to)
        assert (net.owner, bits(await net.state_dict())) == ("ps0", before)
        assert await net(torch.ones(1, 4)) is not None


@pytest.mark.parametrize("what", ["optimizer", "anonymous"])
async def test_what_is_made_from_an_object_while_it_is_copied_moves_with_it_or_keeps_it(
    addresses: list[str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    original, made = ObjectMove._call, list[Any]()

    async def call(move: ObjectMove, session: Any, action: Any, *args: Any, **fields: Any) -> Any:
        result = await original(move, session, action, *args, **fields)
        if action == pb.MOVE_MAKE and not made:
            if what == "optimizer":
                made.append(await ps.optimizer(torch.optim.SGD, net.parameters(), name="late", lr=0.5))
            else:
                made.append(await ps.create(WEIGHTED, torch.ones(3, 2), net))
        return result

    monkeypatch.setattr(ObjectMove, "_call", call)
    async with tc.connect(*addresses) as ps, tc.connect(*addresses) as other:
        net = await ps.module(nn.Linear, 4, 3, name="net", seed=1)
        before = await net.state_dict()
        if what == "anonymous":
            with pytest.raises(tc.errors.InvalidArgumentError, match=r"an anonymous .*Weighted belongs to it"):
                await other.move("net", to="ps1")
            assert net.owner == "ps0"
            return
        assert sorted((await other.move("net", to="ps1")).names) == ["late", "net"]
        async with ps.context() as ctx:
            await ctx.backward((await net(torch.ones(1, 4))).sum(), step=made[0])
        assert list(made[0].remotes) == ["ps1"]
        assert torch.allclose(before["bias"] - 0.5, (await net.state_dict())["bias"])


async def test_owners_without_logs_are_refused(pair: tc.Client) -> None:
    await pair.module(nn.Linear, 1, 1, name="net")
    with pytest.raises(tc.errors.InvalidArgumentError, match="owner 'ps0' has no log"):
        await pair.move("net", to="ps1")


async def test_an_open_pass_holds_a_move_up_and_is_lost_at_last(addresses: list[str]) -> None:
    async with tc.connect(*addresses) as ps, tc.connect(*addresses) as other:
        net, _, opt = await model(ps, "net")
        its = await model(other, "net")

        async def move() -> None:
            await other.move("net", to="ps1", pause=0.1, patience=0.3)

        async def step(ctx: tc.Context) -> Any:
            return await ctx.backward((await net(torch.ones(1, 4))).sum(), step=opt)

        loop = asyncio.get_running_loop()
        async with ps.context() as ctx:
            loss = (await net(torch.ones(1, 4))).sum()
            moving = loop.create_task(move(), context=Context())
            for number in range(3):  # other passes go on meanwhile
                await loop.create_task(its.train(other, number), context=Context())
            await moving
            with pytest.raises(tc.errors.ContextLostError, match="has moved to another owner"):
                await ctx.backward(loss, step=opt)
        assert await ps.run(step) == {"ps1": 4}
