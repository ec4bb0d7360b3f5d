"""Schedulers over several owners and this process: they step together, and one state is that of all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from ps_wire.errors import InvalidArgumentError
from ps_wire.refs import Ref
from ps_wire.v1.frames_pb2 import Reply
from tests.trainer_client.handles.answering import answer_call
from tests.trainer_client.optimizers.parts_on_owners import (
    Place,
    answer_made,
    answer_state,
    asked,
    optimizer_on,
    places,
)
from tests.trainer_client.scripted_owner import decoded
from trainer_client.optimizers.optimizer import DistributedOptimizer
from trainer_client.optimizers.scheduler import DistributedScheduler, create


def leaf() -> torch.Tensor:
    return torch.zeros(1, requires_grad=True)


async def scheduler_of(
    opt: DistributedOptimizer, *some: Place, cls: Any = lr_scheduler.StepLR, **kwargs: Any
) -> DistributedScheduler:
    """A scheduler beside each part of an optimizer on some owners."""
    making = asyncio.create_task(create(cls, opt, (), kwargs, ""))
    for place in some:
        await answer_made(place, "scheduler")
    made = await making
    if opt.local is not None:
        opt.local.optimizer.step()  # torch wants one before the scheduler's first
    return made


def rate(opt: DistributedOptimizer) -> float:
    """The learning rate of the local part."""
    assert opt.local is not None
    return float(opt.local.optimizer.param_groups[0]["lr"])


async def answer_method(place: Place, method: str, value: Any) -> tuple[Any, ...]:
    """Answers the next call of a method; gives its arguments."""
    frame = await asked(place, "call")
    assert frame.request.call.method == method
    call = frame.request.call
    args: tuple[Any, ...] = decoded(call.args, place.stream.payload) if call.HasField("args") else ()
    await answer_call(place.stream, frame, value)
    return args


async def test_each_part_of_the_optimizer_gets_one() -> None:
    async with places() as (here, there):
        opt = optimizer_on(here, there)
        making = asyncio.create_task(create(lr_scheduler.StepLR, opt, (3,), {"gamma": 0.5}, "warm"))
        for place in (here, there):
            request = await answer_made(place, "scheduler")
            assert (request.class_name, request.name) == ("torch.optim.lr_scheduler.StepLR", "warm")
            assert Ref.from_message(request.optimizer) == opt.remotes[place.session.owner].handle.ref
            assert decoded(request.args, place.stream.payload) == (3,)
            assert decoded(request.kwargs, place.stream.payload) == {"gamma": 0.5}
        assert isinstance(await making, DistributedScheduler)


async def test_all_parts_step_together() -> None:
    async with places() as (here, there):
        opt = optimizer_on(here, there, local=leaf())
        scheduler = await scheduler_of(opt, here, there, step_size=1, gamma=0.5)
        pending = scheduler.step()
        assert await answer_method(here, "step", [0.25]) == ()
        assert rate(opt) == 0.5, "this process steps last"
        assert await answer_method(there, "step", [0.125]) == ()
        assert await pending == [0.25], "those of the first part"
        assert rate(opt) == 0.25


async def test_where_one_owner_fails_this_process_does_not_step() -> None:
    async with places() as (here, there):
        opt = optimizer_on(here, there, local=leaf())
        scheduler = await scheduler_of(opt, here, there, step_size=1, gamma=0.5)
        pending = scheduler.step()
        await answer_method(here, "step", [0.25])
        await there.stream.refuse((await asked(there, "call")).number, InvalidArgumentError("it is gone"))
        with pytest.raises(InvalidArgumentError, match="it is gone"):
            await pending
        assert rate(opt) == 0.5


async def test_a_metric_is_told_to_every_part() -> None:
    async with places() as (here, _):
        opt = optimizer_on(here, local=leaf())
        scheduler = await scheduler_of(opt, here, cls=lr_scheduler.ReduceLROnPlateau, patience=0, factor=0.5)
        for metric in (1.0, 2.0):
            pending = scheduler.step(metric)
            assert await answer_method(here, "step", [0.5]) == (metric,)
            await pending
        assert rate(opt) == 0.25


async def test_the_rates_are_asked_of_the_first_part() -> None:
    async with places() as (here, there):
        opt = optimizer_on(here, there)
        scheduler = await scheduler_of(opt, here, there, step_size=1)
        pending = scheduler.get_last_lr()
        assert await answer_method(here, "get_last_lr", [0.5]) == ()
        assert await pending == [0.5]
        await there.stream.nothing_more()


async def test_a_state_is_read_from_one_part_and_set_in_all() -> None:
    async with places() as (here, there):
        opt = optimizer_on(here, there, local=leaf())
        scheduler = await scheduler_of(opt, here, there, step_size=2, gamma=0.5)
        reading = scheduler.state_dict()
        await answer_state(here, {"last_epoch": 4})
        assert await reading == {"last_epoch": 4}
        setting = scheduler.load_state_dict({"last_epoch": 1, "gamma": 0.1})
        for place in (here, there):
            frame = await asked(place, "load_state")
            assert decoded(frame.request.load_state.state, place.stream.payload) == {"last_epoch": 1, "gamma": 0.1}
            await place.stream.answer(frame.number, load_state=Reply().load_state)
        await setting
        stepping = scheduler.step()
        for place in (here, there):
            await answer_method(place, "step", [0.05])
        await stepping
        assert rate(opt) == pytest.approx(0.05), "the second epoch, with the factor that was set"


# What cannot be made


async def test_an_optimizer_with_only_local_parameters_has_torchs_scheduler() -> None:
    with pytest.raises(InvalidArgumentError, match="only local parameters"):
        await create(lr_scheduler.StepLR, optimizer_on(local=leaf()), (1,), {}, "")


async def test_local_parameters_need_the_class_itself() -> None:
    async with places() as (here, _):
        opt = optimizer_on(here, local=leaf())
        with pytest.raises(InvalidArgumentError, match="the scheduler's class instead of its name"):
            await create("torch.optim.lr_scheduler.StepLR", opt, (1,), {}, "")
        await here.stream.nothing_more()


async def test_arguments_that_the_class_refuses_are_told() -> None:
    async with places() as (here, _):
        opt = optimizer_on(here, local=leaf())
        with pytest.raises(InvalidArgumentError, match="StepLR refuses its arguments"):
            await scheduler_of(opt, here, pace=1)
        assert rate(opt) == 0.5
