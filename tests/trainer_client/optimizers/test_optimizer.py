"""Optimizers over several owners and this process: all parts step, or none where that was asked for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from torch import optim

from ps_wire.codec.names import name_of
from ps_wire.errors import ContextEndedError, InvalidArgumentError, NonFiniteGradientError
from ps_wire.refs import Ref
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.frames_pb2 import Reply
from tests.trainer_client.optimizers.parts_on_owners import (
    Place,
    answer_made,
    answer_state,
    answer_step,
    asked,
    optimizer_on,
    places,
)
from tests.trainer_client.scripted_owner import decoded
from tests.trainer_client.scripted_passes import new_context
from trainer_client.contexts.context import Context
from trainer_client.optimizers.creation import create


def leaf() -> torch.Tensor:
    return torch.zeros(1, requires_grad=True)


async def context_with(parameter: torch.Tensor, gradient: float) -> Context:
    """A context in which a local parameter has a gradient."""
    context = new_context()
    await context.backward(parameter, torch.tensor([gradient]))
    return context


async def answer_load(place: Place, error: InvalidArgumentError | None = None) -> Any:
    """Answers the next state that is set; gives it."""
    frame = await asked(place, "load_state")
    state = decoded(frame.request.load_state.state, place.stream.payload)
    if error is not None:
        await place.stream.refuse(frame.number, error)
    else:
        await place.stream.answer(frame.number, load_state=Reply().load_state)
    return state


def sgd_state(lr: float) -> dict[str, Any]:
    """The state of SGD over one parameter."""
    return optim.SGD([leaf()], lr=lr).state_dict()


# Making


async def test_each_owner_gets_a_part_over_its_own_parameters() -> None:
    async with places() as (here, there):
        local = leaf()
        groups = [{"params": [here.weight, there.weight]}, {"params": [local], "lr": 0.1}]
        making = asyncio.create_task(
            create(optim.SGD, groups, {"momentum": 0.9, "lr": 0.5}, "opt", "inconsistent", "apply")
        )
        for place in (here, there):
            request = await answer_made(place, "optimizer")
            assert (request.class_name, request.name) == (name_of(optim.SGD), "opt")
            assert (request.reads, request.non_finite) == (pb.READS_INCONSISTENT, pb.NON_FINITE_APPLY)
            assert decoded(request.options, place.stream.payload) == {"lr": 0.5, "momentum": 0.9}
            members = [[Ref.from_message(each) for each in group.parameters] for group in request.groups]
            assert members == [[place.weight.ref]]
        made = await making
        assert list(made.remotes) == ["ps0", "ps1"]
        assert made.local is not None
        (group,) = made.local.optimizer.param_groups
        assert (group["params"], group["lr"], group["momentum"]) == ([local], 0.1, 0.9)
        assert repr(made) == "<DistributedOptimizer models.Thing on ps0, ps1, this process>"


async def test_a_part_that_cannot_be_made_is_told() -> None:
    async with places() as (here, there):
        making = asyncio.create_task(
            create(optim.SGD, [here.weight, there.weight], {"lr": -1.0}, "", "consistent", "refuse")
        )
        assert (await answer_made(here, "optimizer")).non_finite == pb.NON_FINITE_REFUSE
        await there.stream.refuse((await asked(there, "optimizer")).number, InvalidArgumentError("no such option"))
        with pytest.raises(InvalidArgumentError, match="no such option"):
            await making


async def test_a_class_for_parameters_of_this_process_alone_needs_no_name() -> None:
    class Unnamed(optim.SGD):
        pass

    opt = await create(Unnamed, [leaf()], {"lr": 0.5}, "", "consistent", "apply")
    assert opt.local is not None and isinstance(opt.local.optimizer, Unnamed)


@pytest.mark.parametrize(
    ("cls", "reads", "non_finite", "message"),
    [
        (optim.SGD, "sometimes", "apply", "reads is one of"),
        (optim.SGD, "consistent", "perhaps", "non_finite one of"),
        ("torch.optim.SGD", "consistent", "apply", "the optimizer's class instead of its name"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_before_creation(
    cls: Any, reads: Any, non_finite: Any, message: str
) -> None:
    async with places() as (here, _):
        with pytest.raises(InvalidArgumentError, match=message):
            await create(cls, [here.weight, leaf()], {"lr": 0.1}, "", reads, non_finite)
        await here.stream.nothing_more()


# Steps


async def test_a_step_names_the_optimizer_and_the_pass() -> None:
    async with places() as (here, there):
        opt, context = optimizer_on(there), new_context()
        pending = opt.step(context)
        step = (await answer_step(there, 7)).request.step
        assert Ref.from_message(step.optimizer) == opt.remotes["ps1"].handle.ref
        assert (step.context.number, step.context.trainer) == (context.id.number, context.id.trainer)
        assert not step.check_only
        assert await pending == {"ps1": 7}
        await here.stream.nothing_more()


async def test_the_refusal_of_the_only_part_is_raised() -> None:
    async with places() as (here, _):
        opt = optimizer_on(here, refuses=True)
        pending = opt.step(new_context())
        await here.stream.refuse((await asked(here, "step")).number, NonFiniteGradientError("there is NaN"))
        with pytest.raises(NonFiniteGradientError, match="there is NaN"):
            await pending


async def test_all_parts_step_and_tell_their_versions() -> None:
    async with places() as (here, there):
        local = leaf()
        opt = optimizer_on(here, there, local=local)
        pending = opt.step(await context_with(local, 4.0))
        await answer_step(here, 3)
        assert local.tolist() == [0.0], "this process steps last"
        await answer_step(there, 5)
        assert await pending == {"ps0": 3, "ps1": 5}
        assert local.tolist() == [-2.0]


async def test_a_step_waits_for_all_owners_before_it_raises() -> None:
    async with places() as (here, there):
        local = leaf()
        pending = optimizer_on(here, there, local=local).step(await context_with(local, 4.0))
        await here.stream.refuse((await asked(here, "step")).number, InvalidArgumentError("it is gone"))
        await answer_step(there, 1)
        with pytest.raises(InvalidArgumentError, match="it is gone"):
            await pending
        assert local.tolist() == [0.0]


async def test_a_step_in_a_pass_that_has_ended_changes_nothing() -> None:
    async with places() as (here, there):
        async with new_context() as context:
            pass
        optimizers = [optimizer_on(here), optimizer_on(here, there), optimizer_on(here, local=leaf(), refuses=True)]
        for opt in optimizers:
            with pytest.raises(ContextEndedError):
                opt.step(context)
        for place in (here, there):
            await place.stream.nothing_more()


async def test_where_nan_is_refused_every_part_looks_before_any_steps() -> None:
    async with places() as (here, there):
        pending = optimizer_on(here, there, refuses=True).step(new_context())
        for place in (here, there):
            assert (await answer_step(place, 0)).request.step.check_only
        for place in (here, there):
            assert not (await answer_step(place, 1)).request.step.check_only
        assert await pending == {"ps0": 1, "ps1": 1}


async def test_where_one_owner_refuses_none_steps() -> None:
    async with places() as (here, there):
        local = leaf()
        opt = optimizer_on(here, there, local=local, refuses=True)
        pending = opt.step(await context_with(local, 1.0))
        assert (await answer_step(here, 0)).request.step.check_only
        frame = await asked(there, "step")
        assert frame.request.step.check_only
        await there.stream.refuse(frame.number, NonFiniteGradientError("there is NaN"))
        with pytest.raises(NonFiniteGradientError, match="there is NaN"):
            await pending
        await here.stream.nothing_more()
        assert local.tolist() == [0.0]


async def test_where_nan_is_here_a_local_part_alone_refuses_it_too() -> None:
    local = leaf()
    opt = optimizer_on(local=local, refuses=True)
    with pytest.raises(NonFiniteGradientError, match="local parameter"):
        await opt.step(await context_with(local, float("nan")))
    assert local.tolist() == [0.0]


async def test_where_nan_is_here_no_owner_is_asked() -> None:
    async with places() as (here, _):
        local = leaf()
        opt = optimizer_on(here, local=local, refuses=True)
        pending = opt.step(await context_with(local, float("nan")))
        with pytest.raises(NonFiniteGradientError, match="local parameter"):
            await pending
        await here.stream.nothing_more()


async def test_apply_steps_in_the_thread_that_calls_it() -> None:
    async with places() as (here, _):
        local = leaf()
        opt, context = optimizer_on(here, local=local), await context_with(local, 2.0)
        applying = asyncio.create_task(asyncio.to_thread(opt.apply, context))
        await answer_step(here, 9)
        assert await applying == {"ps0": 9}
        assert local.tolist() == [-1.0]


# Scalers


async def unscaled(place: Place, present: bool, non_finite: bool) -> float:
    """Answers the next unscaling; gives its factor."""
    frame = await asked(place, "unscale")
    reply = Reply()
    reply.unscale.present, reply.unscale.non_finite = present, non_finite
    await place.stream.answer(frame.number, unscale=reply.unscale)
    return frame.request.unscale.factor


def scaler(enabled: bool = True) -> torch.amp.GradScaler:
    """One that multiplies by 4."""
    made = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=enabled)
    made.scale(torch.ones(1))
    return made


async def test_a_scaled_step_unscales_first_everywhere() -> None:
    async with places() as (here, there):
        local = leaf()
        pending = optimizer_on(here, there, local=local).step(await context_with(local, 8.0), scaler())
        assert [await unscaled(place, True, False) for place in (here, there)] == [0.25, 0.25]
        for place in (here, there):
            await answer_step(place, 1)
        assert await pending == {"ps0": 1, "ps1": 1}
        assert local.tolist() == [-1.0]


async def test_a_scaled_step_with_infinity_anywhere_is_left_out() -> None:
    async with places() as (here, there):
        local = leaf()
        opt = optimizer_on(here, there, local=local)
        pending = opt.step(await context_with(local, 8.0), scaler())
        await unscaled(here, True, False)
        await unscaled(there, True, True)
        assert await pending is None
        await here.stream.nothing_more()
        assert local.tolist() == [0.0]


async def test_a_scaler_that_is_off_changes_nothing() -> None:
    async with places() as (here, _):
        opt, context = optimizer_on(here), new_context()
        assert await opt.unscale(context, scaler(enabled=False)) is None
        pending = opt.step(context, scaler(enabled=False))
        await answer_step(here, 2)
        assert await pending == {"ps0": 2}


async def test_unscaling_before_clipping_is_not_done_again_by_the_step() -> None:
    async with places() as (here, _):
        opt, context, by = optimizer_on(here), new_context(), scaler()
        pending = opt.unscale(context, by)
        assert await unscaled(here, True, False) == 0.25
        assert await pending is None
        step = opt.step(context, by)
        await answer_step(here, 1)
        assert await step == {"ps0": 1}


# Options and states


async def test_options_are_set_in_every_part() -> None:
    async with places() as (here, there):
        local = leaf()
        opt = optimizer_on(here, there, local=local)
        pending = opt.set_options(lr=0.25)
        for place in (here, there):
            frame = await asked(place, "set_options")
            assert decoded(frame.request.set_options.options, place.stream.payload) == {"lr": 0.25}
            await place.stream.answer(frame.number, set_options=Reply().set_options)
        await pending
        assert opt.local is not None and opt.local.optimizer.param_groups[0]["lr"] == 0.25


async def test_options_that_do_not_fit_here_are_sent_to_no_owner() -> None:
    async with places() as (here, _):
        opt = optimizer_on(here, local=leaf())
        with pytest.raises(InvalidArgumentError):
            await opt.set_options(speed=3)
        with pytest.raises(InvalidArgumentError):
            await opt.set_options(group=7, lr=0.1)
        await here.stream.nothing_more()


async def test_the_states_of_all_parts_are_one() -> None:
    async with places() as (here, there):
        pending = optimizer_on(here, there, local=leaf()).state_dict()
        for place in (here, there):
            await answer_state(place, sgd_state(0.5))
        state = await pending
        assert [group["params"] for group in state["param_groups"]] == [[0, 1, 2]]
        assert state["param_groups"][0]["lr"] == 0.5


async def test_a_state_is_set_in_every_part() -> None:
    async with places() as (here, there):
        opt = optimizer_on(here, there)
        whole = optim.SGD([leaf(), leaf()], lr=0.125).state_dict()
        pending = opt.load_state_dict(whole)
        for place in (here, there):
            await answer_state(place, sgd_state(0.5))
        for place in (here, there):
            assert (await answer_load(place))["param_groups"][0]["lr"] == 0.125
        await pending


async def test_where_one_part_refuses_a_state_all_have_the_one_before() -> None:
    async with places() as (here, there):
        local = leaf()
        opt = optimizer_on(here, there, local=local)
        pending = opt.load_state_dict(optim.SGD([leaf(), leaf(), leaf()], lr=0.125).state_dict())
        await answer_state(here, sgd_state(0.5))
        await answer_state(there, sgd_state(0.75))
        await answer_load(here)
        await answer_load(there, InvalidArgumentError("it does not fit"))
        assert (await answer_load(here))["param_groups"][0]["lr"] == 0.5
        assert (await answer_load(there))["param_groups"][0]["lr"] == 0.75
        with pytest.raises(InvalidArgumentError, match="it does not fit"):
            await pending
        assert opt.local is not None and opt.local.optimizer.param_groups[0]["lr"] == 0.5
