"""An owner that drains writes everything down, and the next one goes on from there: trainers notice a pause."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

import trainer_client as tc
from ps_service.durability.store import CheckpointError
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server
from ps_wire.connections.frames import Packet
from tests.integration.breaking import OWN_ACCORD, BreakAt, Found, Place
from tests.integration.restarting import TALLY, WEIGHTED, Owner, Told, step
from tests.integration.support import AFFINE, COUNTER, bits, fingerprint, until
from trainer_client.transport.faulty import Direction, Fault, FaultyConnector
from trainer_client.transport.grpc_stream import GrpcConnector

# Training


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (optim.Adam, {"lr": 0.01, "amsgrad": True}),
        (optim.RMSprop, {"lr": 0.01, "centered": True, "momentum": 0.5}),
        (optim.ASGD, {"lr": 0.1}),
        (optim.Rprop, {"lr": 0.1}),
        (optim.NAdam, {"lr": 0.01}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
async def test_training_goes_on_bit_for_bit(owner: Owner, ps: tc.Client, cls: Any, options: dict[str, Any]) -> None:
    net = await ps.module("torch.nn.Linear", 4, 2, name="net", seed=3)
    opt = await ps.optimizer(cls, net.parameters(), **options)
    schedule = await ps.scheduler(lr_scheduler.StepLR, opt, 2, gamma=0.5)
    torch.manual_seed(3)
    here = nn.Linear(4, 2)
    local = cls(here.parameters(), **options)
    local_schedule = lr_scheduler.StepLR(local, 2, gamma=0.5)
    for number in range(6):
        x = torch.full((3, 4), 1.0 + number)
        loss, versions = await step(ps, opt, net, x)
        local.zero_grad()
        expected = here(x).square().mean()
        expected.backward()
        local.step()
        await schedule.step()
        local_schedule.step()
        assert (loss, versions) == (expected.item(), {"ps0": number + 1})
        if number in (1, 3):
            await owner.restart()
    assert bits(await net.state_dict()) == bits(dict(here.state_dict()))
    assert bits((await opt.state_dict())["state"]) == bits(local.state_dict()["state"])


async def test_curves_of_values_go_on(owner: Owner, ps: tc.Client) -> None:
    def curves() -> Any:
        return [
            (each.optimizer, each.name, each.seen, list(each.points.last_version), list(each.points.mean))
            for each in owner.server.engine.curves.news({}).fresh
        ]

    net = await ps.module("torch.nn.Linear", 4, 2, name="net", seed=3)
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    for number in range(6):
        async with ps.context() as ctx:
            await ctx.backward((await net(torch.ones(1, 4))).sum())
            await opt.step(ctx, values={"loss": 0.5 * number, "bad": float("nan")})
        if number % 2:
            before = curves()
            await owner.restart()
            assert str(curves()) == str(before), "NaN is not equal to itself"
    assert curves()[0] == ("net.optimizer", "loss", 6, [1, 2, 3, 4, 5, 6], [0.0, 0.5, 1.0, 1.5, 2.0, 2.5])


@pytest.mark.parametrize("together", [False, True], ids=["step by itself", "step in the backward"])
async def test_restarts_under_load_are_not_noticed_and_every_step_counts_once(owner: Owner, together: bool) -> None:
    """A weight from which every step takes one: what is left tells how many there were."""

    async def train(steps: int) -> None:
        async with tc.connect(owner.address) as ps:
            net = await ps.module(WEIGHTED, torch.zeros(1), name="net")
            opt = await ps.optimizer(optim.SGD, net.parameters(), lr=1.0)
            for _ in range(steps):
                async with ps.context() as ctx:
                    loss = (await net(torch.ones(1))).sum()
                    if together:
                        told.add((await ctx.backward(loss, step=opt))["ps0"])
                    else:
                        await ctx.backward(loss)
                        told.add((await opt.step(ctx))["ps0"])

    told: Told[int] = Told()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        training = [group.create_task(train(20)) for _ in range(4)]
        for restarts in range(1, 4):
            await told.reached(12 * restarts)
            await owner.restart()
        assert not all(task.done() for task in training)
    assert sorted(told.items) == list(range(1, 81))
    async with tc.connect(owner.address) as ps:
        net = await ps.module(WEIGHTED, torch.zeros(1), name="net")
        state = await net.state_dict()
        assert state["weight"].item() == -80.0
        assert state["calls"].item() == 80
        await until(ps, lambda status: status.contexts == 0 and status.connected_sessions == 1)


async def job(ps: tc.Client) -> list[Any]:
    """Creates, trains and counts; everything it saw, and everything that is there at its end."""
    seen: list[Any] = []
    net = await ps.module(AFFINE, 3, 2, name="net", seed=0)
    tally = await ps.create(TALLY)
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, momentum=0.9)
    for number in range(2):
        async with ps.context() as ctx:
            loss = (await net(torch.full((2, 3), number + 1.0))).square().sum()
            if number:
                versions = await ctx.backward(loss, step=opt)
            else:
                await ctx.backward(loss)
                versions = await opt.step(ctx)
            seen += [loss.detach(), versions]
        seen.append(await tally.add(number + 1))
    seen.append(sorted(await asyncio.gather(*(tally.add() for _ in range(3)))))
    seen += [await net.state_dict(), await opt.state_dict()]
    return bits(seen)


class Restart(BreakAt):
    """Restarts an owner, once, when some packet is about to go some way."""

    def __init__(self, owner: Owner, fault: Fault, place: Place) -> None:
        super().__init__(fault, place)
        self._owner = owner
        self.restarting: asyncio.Task[None] | None = None

    def __call__(self, direction: Direction, index: int, packet: Packet) -> Fault:
        fault = super().__call__(direction, index, packet)
        if self.hit and not self.restarting:
            self.restarting = asyncio.create_task(self._owner.restart())
        return fault


@pytest.mark.parametrize(
    ("direction", "fault"), [*((each, Fault.CUT) for each in Direction), (Direction.TO_OWNER, Fault.NONE)]
)
async def test_an_owner_may_restart_at_any_packet(tmp_path: Path, direction: Direction, fault: Fault) -> None:
    """At the first and the last packet of every kind. With `CUT` that packet is lost besides: a request that was not
    taken up, or the answer of one that was; and otherwise the restarts at the last ones are enough."""
    found = Found()
    async with Owner(tmp_path / "whole") as owner:
        expected = await over(owner, found)
    places = [each for each in found.places() if each.direction is direction]
    if fault is Fault.NONE:
        places = list({each.kind: each for each in places}.values())
    for number, place in enumerate(places):
        async with Owner(tmp_path / str(number)) as owner:
            plan = Restart(owner, fault, place)
            assert await over(owner, plan) == expected, place
            if plan.restarting:
                await plan.restarting  # it may have been the trainer's goodbye
            assert plan.hit or place.earlier or place.kind in OWN_ACCORD, place


async def over(owner: Owner, plan: Found | Restart) -> list[Any]:
    """The job over gRPC, and that nothing of it is left."""
    async with tc.connect(FaultyConnector(GrpcConnector(owner.address), plan), shared_memory=False) as ps:
        result = await job(ps)
        if isinstance(plan, Restart) and plan.restarting:
            await plan.restarting
        await until(ps, lambda status: not status.kept_answers | status.contexts | status.references)
    return result


# What is kept


async def test_everything_is_there_again(owner: Owner, ps: tc.Client) -> None:
    first = await ps.module(WEIGHTED, torch.randn(3, 2), name="first")
    outer = await ps.create(WEIGHTED, torch.randn(2, 2), first)
    (weight,) = first.parameters()
    tally = await ps.create(TALLY, 5)
    await tally.add(2)

    def optimizer_of_both() -> Any:
        return ps.optimizer(
            optim.Adam,
            [{"params": [weight], "lr": 0.5}, {"params": [outer.parameter("weight")]}],
            lr=0.1,
            name="both",
            reads="inconsistent",
            non_finite="refuse",
        )

    opt = await optimizer_of_both()
    await ps.scheduler(lr_scheduler.CosineAnnealingLR, opt, T_max=7)
    await step(ps, opt, outer, torch.randn(4, 3))
    await opt.set_options(1, lr=0.25, betas=(0.5, 0.6))
    before = fingerprint(owner.server.engine)
    optimizer = owner.server.engine.registry.named("both").value
    await until(ps, lambda status: status.contexts == 0 and status.kept_answers == 0)
    await owner.restart()
    engine = owner.server.engine
    assert fingerprint(engine) == before
    again = engine.registry.named("both").value
    assert again is not optimizer
    assert (again.is_consistent, again.refuses_non_finite) == (optimizer.is_consistent, optimizer.refuses_non_finite)
    named = engine.registry.named("first")
    inner = engine.registry.find(outer.ref).value.inner
    assert inner.weight is named.value.weight, "what was shared is shared again"
    # A second request for the same finds it, and another is a conflict, as before.
    same = await optimizer_of_both()
    assert same.remotes["ps0"].handle == opt.remotes["ps0"].handle
    with pytest.raises(tc.errors.NameConflictError):
        await ps.module(WEIGHTED, torch.zeros(3, 2), name="first")
    with pytest.raises(tc.errors.NonFiniteGradientError):
        await step(ps, opt, outer, torch.full((1, 3), float("nan")))
    assert await tally.add() == 8


async def test_results_that_stayed_are_there_again(owner: Owner, ps: tc.Client) -> None:
    counter = await ps.create(COUNTER)
    values = [torch.arange(5), {"a": [1, torch.ones(2, dtype=torch.complex64)]}, ("text", None, 2**70)]
    handles = [await counter.hand_out(value) for value in values]
    await owner.restart()
    for handle, value in zip(handles, values, strict=True):
        assert bits(await handle.to_here()) == bits(value)


async def test_objects_that_cannot_be_kept_are_reported_and_lost(
    owner: Owner, ps: tc.Client, caplog: pytest.LogCaptureFixture
) -> None:
    counter = await ps.create(COUNTER, 3, name="counter")
    tally = await ps.create(TALLY, name="tally")
    await owner.restart()
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line for line in told if "'counter' is not kept: " in line and "no state_dict and load_state_dict" in line]
    with pytest.raises(tc.errors.StaleHandleError, match="the owner has started without it"):
        await counter.get()
    with pytest.raises(tc.errors.UnknownNameError):
        await ps.attach("counter")
    assert await tally.add() == 1


async def test_dependencies_are_kept_with_their_objects(owner: Owner, ps: tc.Client) -> None:
    named = await ps.module(WEIGHTED, torch.ones(2, 2), name="inner")
    anonymous = await ps.module(WEIGHTED, torch.ones(2, 2))
    nets = [
        await ps.module(WEIGHTED, torch.ones(2, 2), inner, name=f"{i}") for i, inner in enumerate((named, anonymous))
    ]
    opts = [await ps.optimizer(optim.SGD, net.parameters(), lr=0.1) for net in nets]
    await ps.delete("inner")
    del named, anonymous
    await ps.module("torch.nn.Linear", 2, 2, name="inner")  # something else
    x = torch.ones(1, 2)
    before = [(await step(ps, opt, net, x))[0] for net, opt in zip(nets, opts, strict=True)]
    await until(ps, lambda status: len(status.objects) == 3)
    for version in (2, 3):
        await owner.restart()
        assert len(owner.server.engine.registry) == 5, "the objects that they were made from are found by no name"
        for net, opt, loss in zip(nets, opts, before, strict=True):
            less, versions = await step(ps, opt, net, x)
            assert less < loss and versions == {"ps0": version}


async def test_an_object_with_a_missing_dependency_is_left_out_too(
    owner: Owner, ps: tc.Client, caplog: pytest.LogCaptureFixture
) -> None:
    counter = await ps.create(COUNTER)
    tally = await ps.create(TALLY, counter, name="tally")
    assert tally.class_name == TALLY
    await owner.restart()
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any(
        "'tally' is not kept: it was constructed with an anonymous tests.hosted_models.Counter" in line for line in told
    )
    assert not len(owner.server.engine.registry)


async def test_references_are_counted_on(owner: Owner, ps: tc.Client) -> None:
    handles = [await ps.create(TALLY) for _ in range(3)]
    await owner.restart()
    assert len(owner.server.engine.registry) == 3
    del handles
    await until(ps, lambda status: not status.objects)


async def test_a_trainer_that_does_not_come_back_is_forgotten_after_its_lease(owner: Owner) -> None:
    async with tc.connect(owner.address) as ps:
        kept = await ps.create(TALLY)
        await owner.server.drain(20)
    await owner.start()
    engine = owner.server.engine
    assert (len(engine.sessions), len(engine.registry)) == (1, 1) and kept
    engine.sessions._clock = lambda: 1e12
    (session,) = engine.sessions.all()
    session._clock = lambda: 1e12
    owner.server.servicer.session_handlers.sweep()
    assert (len(engine.sessions), len(engine.registry)) == (0, 0)


# What it refuses to start from


async def test_another_owners_directory_is_refused(owner: Owner) -> None:
    await owner.server.drain(1)
    with pytest.raises(CheckpointError, match="is the state of owner 'ps0', but this owner is 'ps7'"):
        await Owner(owner.folder, "ps7").start()
    await owner.start()


async def test_a_class_that_is_not_hosted_any_more_is_named(owner: Owner, ps: tc.Client) -> None:
    await ps.create(TALLY, name="tally")
    await owner.server.drain(1)
    server = Server(Engine("ps0", AllowList(), data_dir=owner.folder), "127.0.0.1:0")
    with pytest.raises(CheckpointError, match=r"Tally 'tally' cannot be made again.*--import"):
        await server.start()
    await owner.start()
    assert await (await ps.attach("tally")).add() == 1


async def test_a_disk_that_is_full_is_told_and_the_checkpoint_before_counts(
    owner: Owner, ps: tc.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = await ps.create(TALLY, name="tally")
    await tally.add()
    await owner.restart()
    await tally.add()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("ps_service.durability.files.write_file", full)
        with pytest.raises(CheckpointError, match="No space left on device; checkpoint-000001 is still valid"):
            await owner.server.drain(1)
    assert owner.server.failed and owner.server.kept.is_set()
    await owner.start()
    with pytest.raises(tc.errors.SessionLostError):
        await tally.add()
    assert await (await ps.attach("tally")).add() == 2
