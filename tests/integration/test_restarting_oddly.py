"""States that torch would not take back, and code that keeps an owner from coming to rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import optim
from torch.optim import lr_scheduler

import trainer_client as tc
from tests import waiting
from tests.forking.process import Forking
from tests.integration import odd_models
from tests.integration.odd_models import BEGUN, HOLD
from tests.integration.restarting import TALLY, Owner, step
from tests.integration.support import COUNTER, bits, fingerprint, until

ODD = "tests.integration.odd_models"


@pytest.fixture(autouse=True)
def hanging() -> Iterator[None]:
    """Whatever hangs goes on when the test is over."""
    BEGUN.clear()
    HOLD.clear()
    yield
    HOLD.set()


@pytest.fixture
async def owner(tmp_path: Path, hanging: None) -> AsyncIterator[Owner]:
    async with Owner(tmp_path / "data", modules=[odd_models], threads=4) as owner:
        yield owner
        HOLD.set()


@pytest.fixture
async def ps(owner: Owner) -> AsyncIterator[tc.Client]:
    async with tc.connect(owner.address) as client:
        yield client


async def begun() -> None:
    assert await asyncio.to_thread(BEGUN.wait, 20)


async def running(owner: Owner, count: int) -> None:
    """Waits until so many requests run or wait for a thread, of which there may be none to ask for the status."""
    await waiting.until(lambda: owner.server.engine.counters.running >= count)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


# Odd states


async def test_buffers_and_extra_states_keep_their_changes(owner: Owner, ps: tc.Client) -> None:
    net = await ps.module(f"{ODD}.OddBuffers", name="net")
    await net.use()
    for uses in (2, 3):
        await owner.restart()
        expected = [torch.ones(3), None, torch.ones(uses), [float(each) for each in range(uses)]]
        assert bits(await net.use()) == bits(expected)


@pytest.mark.parametrize(
    ("cls", "dtype"),
    [
        *((f"{ODD}.MasterWeights", dtype) for dtype in (torch.float32, torch.bfloat16, torch.float64)),
        *((optim.Adam, dtype) for dtype in (torch.bfloat16, torch.float64)),
        *((cls, torch.bfloat16) for cls in (optim.NAdam, optim.ASGD)),
    ],
    ids=str,
)
async def test_an_optimizers_state_keeps_its_precision(
    owner: Owner, ps: tc.Client, cls: Any, dtype: torch.dtype
) -> None:
    net = await ps.module("torch.nn.Linear", 2, 2, name="net", dtype=dtype)
    opt = await ps.optimizer(cls, net.parameters(), lr=0.001)
    for _ in range(3):
        await step(ps, opt, net, torch.ones(1, 2, dtype=dtype))
    await until(ps, lambda status: status.contexts == 0)
    before = fingerprint(owner.server.engine)
    await owner.restart()
    assert fingerprint(owner.server.engine) == before
    assert (await step(ps, opt, net, torch.ones(1, 2, dtype=dtype)))[1] == {"ps0": 4}


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (lr_scheduler.MultiStepLR, {"milestones": [2, 4], "gamma": 0.5}),
        (lr_scheduler.ReduceLROnPlateau, {"patience": 1}),
        (lr_scheduler.OneCycleLR, {"max_lr": 0.5, "total_steps": 9}),
        (lr_scheduler.CyclicLR, {"base_lr": 0.1, "max_lr": 0.5, "step_size_up": 3}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
async def test_schedules_go_on(owner: Owner, ps: tc.Client, cls: Any, options: dict[str, Any]) -> None:
    net = await ps.module("torch.nn.Linear", 2, 2, name="net")
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, momentum=0.9)
    schedule = await ps.scheduler(cls, opt, **options)
    local_opt = optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1, momentum=0.9)
    local = cls(local_opt, **options)
    arguments = (1.0,) if cls is lr_scheduler.ReduceLROnPlateau else ()
    for number in range(7):
        local_opt.step()
        local.step(*arguments)
        await schedule.step(*arguments)
        (rate,) = (await opt.state_dict())["param_groups"]
        assert rate["lr"] == local_opt.param_groups[0]["lr"]
        if number in (1, 4):
            await owner.restart()


async def test_a_handle_to_a_part_of_something_is_not_kept(
    owner: Owner, ps: tc.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """It would be a part of nothing afterwards."""
    holder = await ps.create(f"{ODD}.Holder", name="holder")
    weight = await holder.weight()
    await owner.restart()
    assert any("is not kept: it is part of another object" in line for line in warnings(caplog))
    with pytest.raises(tc.errors.StaleHandleError):
        await weight.to_here()
    assert torch.equal(await (await holder.weight()).to_here(), torch.zeros(2))


async def test_a_leaf_that_was_trained_is_not_kept(
    owner: Owner, ps: tc.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """A copy of it would belong to no object, and nothing would train that."""
    holder = await ps.create(f"{ODD}.Holder", name="holder")
    leaf: Any = await holder.remote("leaf")
    opt = await ps.optimizer(optim.SGD, [leaf], lr=0.1)
    async with ps.context() as ctx:
        await ctx.backward((await leaf.to_here()).sum())
        await opt.step(ctx)
    torch.testing.assert_close(await leaf.to_here(), torch.full((2,), 0.9))
    await owner.restart()
    assert any("is not kept: it holds a tensor that may be trained" in line for line in warnings(caplog))
    with pytest.raises(tc.errors.StaleHandleError):
        await leaf.to_here()


async def test_a_state_that_would_end_the_process_does_not(
    owner: Owner, ps: tc.Client, caplog: pytest.LogCaptureFixture
) -> None:
    await ps.create(f"{ODD}.Raising", name="raising")
    tally = await ps.create(TALLY)
    await owner.restart()
    assert any("'raising' is not kept: its state_dict raised SystemExit(3)" in line for line in warnings(caplog))
    assert await tally.add() == 1


# Code that hangs


async def _hang(ps: tc.Client, case: str) -> Any:
    if case == "a lock":
        locked = await ps.create(f"{ODD}.Locked", name="hangs")
        return locked.hang()
    net = await ps.module("torch.nn.Linear", 2, 2)
    opt = await ps.optimizer(f"{ODD}.HangingOptimizer", net.parameters(), lr=0.1, name="hangs")
    context = ps.context()
    context.enter()
    await context.backward((await net(torch.ones(2))).sum())
    return opt.step(context)


@pytest.mark.parametrize("case", ["a lock", "an optimizer"])
async def test_an_object_whose_state_hangs_is_left_out(
    owner: Owner, ps: tc.Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr("ps_service.durability.writing._PATIENCE_SECONDS", 0.2)
    tally = await ps.create(TALLY)
    await tally.add(5)
    hanging = await asyncio.create_task(_hang(ps, case))  # in a context of its own
    await _drained_meanwhile(owner)
    with pytest.raises(tc.errors.SessionLostError, match="stopped while this request ran"):
        await hanging
    assert any("is not kept: its state could not be read" in line for line in warnings(caplog))
    await owner.start()
    assert await tally.add() == 6


async def test_a_forward_that_hangs_keeps_its_module_neither_from_steps_nor_from_being_kept(
    owner: Owner, ps: tc.Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ps_service.hosting.turns.FIRST_PATIENCE_SECONDS", 1.0)
    net = await ps.module(f"{ODD}.HangingNet", name="net")
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    hanging = net.hang()
    await begun()
    async with ps.context() as ctx:
        await ctx.backward((await net(torch.ones(2))).sum())
        assert await opt.step(ctx) == {"ps0": 1}
    before = await net.state_dict()
    await _drained_meanwhile(owner)
    with pytest.raises(tc.errors.SessionLostError, match="stopped while this request ran"):
        await hanging
    assert not any("is not kept" in line for line in warnings(caplog))
    await owner.start()
    after = await net.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(after[key], before[key]) for key in before)


async def _drained_meanwhile(owner: Owner) -> None:
    """Returns once the owner has stopped although something hangs."""
    await begun()
    draining = asyncio.create_task(owner.server.drain(0.05))
    assert await asyncio.to_thread(owner.server.kept.wait, 20)
    HOLD.set()
    await draining


# What is under way


async def test_a_pass_whose_first_forward_waits_for_a_thread_comes_to_its_end(tmp_path: Path) -> None:
    async with Owner(tmp_path / "data", modules=[odd_models], threads=1) as owner, tc.connect(owner.address) as ps:
        net = await ps.module(f"{ODD}.Slow", name="net")
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        blocking = net(torch.ones(2))
        await begun()
        async with ps.context() as ctx:
            queued = net(torch.ones(2))
            await running(owner, 2)
            draining = asyncio.create_task(owner.server.drain(20))
            await asyncio.sleep(0)
            assert owner.server.engine.draining
            HOLD.set()
            await ctx.backward((await queued).sum())
            assert await opt.step(ctx) == {"ps0": 1}
        await draining
        await blocking
        await owner.start()


async def test_a_request_that_no_thread_had_begun_is_run_later(tmp_path: Path) -> None:
    async with Owner(tmp_path / "data", modules=[odd_models], threads=1) as owner, tc.connect(owner.address) as ps:
        net = await ps.module(f"{ODD}.Slow", name="net")
        blocking = net(torch.ones(2))
        await begun()
        queued = ps.create(TALLY, 3)
        await running(owner, 2)
        draining = asyncio.create_task(owner.server.drain(0.05))
        with pytest.raises(tc.errors.SessionLostError, match="whether it had an effect is not known"):
            await blocking
        HOLD.set()
        await draining
        await owner.start()
        assert await (await queued).add() == 4


async def test_a_result_that_comes_while_an_owner_drains_is_an_answer(owner: Owner, ps: tc.Client) -> None:
    later = await ps.create(f"{ODD}.Later", name="later")
    pending = later.wait()
    await begun()
    draining = asyncio.create_task(owner.server.drain(20))
    await until(ps, lambda status: not status.serving)
    await asyncio.to_thread(owner.server.engine.registry.named("later").value.answer)
    assert await pending == 7
    await draining
    await owner.start()


async def test_nothing_is_handed_out_while_a_checkpoint_is_written(owner: Owner, ps: tc.Client) -> None:
    counter = await ps.create(COUNTER)
    box = await counter.hand_out(torch.ones(2))
    await owner.server.quiet(20)
    fetching = box.to_here()
    await ps.status()
    assert not fetching.done()
    await owner.restart()
    assert torch.equal(await fetching, torch.ones(2))


async def test_owners_of_a_group_may_all_end_at_once(forking: Forking, tmp_path: Path) -> None:
    from tests.owner_processes import forked_owners

    def flags(name: str, directory: str) -> list[str]:
        return ["--name", name, "--directory", directory, "--data-dir", str(tmp_path / name)]

    async with forked_owners(forking) as start:
        keeper = await start(*flags("directory", "self"))
        ps0 = await start(*flags("ps0", keeper.address))
        for owner in (keeper, ps0):
            owner.process.terminate()
        for owner in (keeper, ps0):
            await owner.ended()
            assert owner.process.returncode == 0
        again, other = await asyncio.gather(
            start(*flags("directory", "self"), "--listen", keeper.address),
            start(*flags("ps0", keeper.address), "--listen", ps0.address),
        )
        assert other.first == f"ps0 is serving on {ps0.address}\n"
        async with tc.connect("ps0", directory=again.address) as ps:
            assert (await ps.status("ps0")).owner == "ps0"
