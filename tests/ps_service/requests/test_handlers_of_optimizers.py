"""Handlers of optimizers, schedulers and state: what their messages say reaches torch, or is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ps_service.engine import Engine
from ps_wire.errors import InvalidArgumentError, NonFiniteGradientError, TooLargeError
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.values_pb2 import Value
from tests.ps_service.requests.asking import ONE, Asker, parameter, python, value


@pytest.fixture
async def ask(engine: Engine) -> Asker:
    return Asker(engine)


async def test_optimizer_takes_groups_options_and_policies(ask: Asker) -> None:
    made = await ask.linear()
    request = pb.OptimizerRequest(
        class_name="torch.optim.SGD",
        groups=[pb.ParameterGroup(parameters=[parameter(made)], options=value({"momentum": 0.5}))],
        options=value({"lr": 0.25}),
        name="opt",
        non_finite=pb.NON_FINITE_REFUSE,
    )
    reply = await ask("optimizer", request)
    assert (reply.created, reply.object.name, reply.object.class_name) == (True, "opt", "torch.optim.SGD")
    assert not (await ask("optimizer", request)).created
    (group,) = ask.engine.registry.named("opt").value.optimizer.param_groups
    assert (group["lr"], group["momentum"]) == (0.25, 0.5)
    await ask.forward(made.handle, torch.tensor([[float("nan"), 1.0]]))
    await ask.backward([torch.ones(1, 1)])
    with pytest.raises(NonFiniteGradientError):
        await ask("step", pb.StepRequest(optimizer=reply.object.handle, context=ONE))


@pytest.mark.parametrize(
    "fields",
    [
        {"options": value([1])},
        {"options": value({1: 2})},
        {"options": value({"no_such_option": 1})},
        {"reads": 7},
        {"non_finite": 7},
        {"groups": []},
        {"groups": [pb.ParameterGroup()]},
    ],
    ids=repr,
)
async def test_an_optimizer_that_makes_no_sense_is_refused(ask: Asker, fields: dict[str, Any]) -> None:
    made = await ask.linear()
    whole = {
        "class_name": "torch.optim.SGD",
        "groups": [pb.ParameterGroup(parameters=[parameter(made)])],
        "options": value({"lr": 0.1}),
    }
    with pytest.raises(InvalidArgumentError):
        await ask("optimizer", pb.OptimizerRequest(**{**whole, **fields}))
    assert len(ask.engine.registry) == 1


async def test_set_options_of_one_group_or_of_all(ask: Asker) -> None:
    nets = [await ask.linear("one"), await ask.linear("other")]
    groups = [pb.ParameterGroup(parameters=[parameter(net)]) for net in nets]
    request = pb.OptimizerRequest(class_name="torch.optim.SGD", groups=groups, options=value({"lr": 0.5}), name="opt")
    optimizer = (await ask("optimizer", request)).object

    async def set_rate(rate: float, **group: int) -> list[float]:
        options = value({"lr": rate})
        await ask("set_options", pb.SetOptionsRequest(optimizer=optimizer.handle, options=options, **group))
        return [group["lr"] for group in ask.engine.registry.named("opt").value.optimizer.param_groups]

    assert await set_rate(0.125) == [0.125, 0.125]
    assert await set_rate(2.0, group=0) == [2.0, 0.125]
    assert await set_rate(3.0, group=1) == [2.0, 3.0]
    with pytest.raises(InvalidArgumentError, match="no parameter group 2"):
        await set_rate(4.0, group=2)


async def test_scheduler_steps_its_optimizer(ask: Asker) -> None:
    optimizer = await ask.optimizer(await ask.linear())
    request = pb.SchedulerRequest(
        class_name="torch.optim.lr_scheduler.ExponentialLR", optimizer=optimizer.handle, kwargs=value({"gamma": 0.5})
    )
    made = await ask("scheduler", request)
    assert (made.created, made.object.name) == (True, f"{optimizer.name}.ExponentialLR")
    assert (await ask("scheduler", request)).object.handle == made.object.handle
    optimizer_of = ask.engine.registry.named(optimizer.name).value.optimizer
    optimizer_of.step()
    step = pb.CallRequest(target=made.object.handle, method="step")
    assert python((await ask("call", step)).result) == [0.25]
    assert optimizer_of.param_groups[0]["lr"] == 0.25


async def test_state_goes_out_and_comes_in(ask: Asker) -> None:
    made = await ask.linear()
    state = python((await ask("state", pb.StateRequest(target=made.handle))).state)
    assert {name: tensor.tolist() for name, tensor in state.items()} == {"weight": [[1.0, 2.0]]}
    load = pb.LoadStateRequest(target=made.handle, state=value({"weight": torch.zeros(1, 2)}), strict=True)
    await ask("load_state", load)
    assert await ask.weight(made) == [[0.0, 0.0]]


async def test_loading_says_which_keys_did_not_fit(ask: Asker) -> None:
    made = await ask.linear()
    state = value({"wait": torch.ones(1, 2)})
    with pytest.raises(InvalidArgumentError, match=r"missing \['weight'\], unexpected \['wait'\]"):
        await ask("load_state", pb.LoadStateRequest(target=made.handle, state=state, strict=True))
    reply = await ask("load_state", pb.LoadStateRequest(target=made.handle, state=state, strict=False))
    assert (list(reply.missing_keys), list(reply.unexpected_keys)) == (["weight"], ["wait"])
    assert await ask.weight(made) == [[1.0, 2.0]]


async def test_reported_values_are_checked_by_the_owner_too(ask: Asker) -> None:
    made = await ask.linear()
    groups = [pb.ParameterGroup(parameters=[parameter(made)])]
    opt = (await ask("optimizer", pb.OptimizerRequest(class_name="torch.optim.SGD", groups=groups))).object.handle

    def one(name: str, reported: Any, reduction: int = pb.REDUCTION_MEAN) -> pb.ReportedValue:
        return pb.ReportedValue(name=name, reduction=reduction, value=reported)  # type: ignore[arg-type]

    for values in (
        [one("a", value(1)), one("a", value(2))],
        [one("a", value(1), pb.REDUCTION_UNSPECIFIED)],
        [one("a", value(1), 99)],
        [one("", value(1))],
        [one("a", value("text"))],
        [one("a", Value(big_integer=b"\x7f" * 9))],
        [one("a", Value(name="torch.add"), pb.REDUCTION_KEEP)],
        [one("a", value("x" * 70_000), pb.REDUCTION_KEEP)],
        [one("a", value(torch.zeros(100_000)), pb.REDUCTION_SUM)],
        [one(f"n{number}", value(1)) for number in range(65)],
        [one("a", Value())],
    ):
        with pytest.raises((InvalidArgumentError, TooLargeError)):
            await ask("step", pb.StepRequest(optimizer=opt, context=ONE, values=values))
    stepped = await ask("step", pb.StepRequest(optimizer=opt, context=ONE, values=[one("a", value(3))]))
    assert python(stepped.values) == {"a": 3}
    found = await ask("reported", pb.ReportedRequest(optimizer=opt, reset=True))
    assert (python(found.values), [*found.names], [*found.counts], found.gradients) == ({"a": 3}, ["a"], [1], 1)
