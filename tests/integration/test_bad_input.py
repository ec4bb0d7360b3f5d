"""Tests that bad input raises a typed error that says what to do, and does not change the owner."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
import torch

import trainer_client as tc
from ps_service.server import Server
from ps_wire.codec.payload import PayloadWriter
from ps_wire.codec.values import Encoder
from ps_wire.limits import MIB, Limits
from ps_wire.refs import ContextId
from ps_wire.v1.frames_pb2 import Reply, Request
from ps_wire.v1.operations_pb2 import BackwardRequest, CallRequest, FetchRequest, StepRequest
from tests.integration.support import AFFINE, COUNTER, fingerprint, serving
from trainer_client.errors import (
    ContextEndedError,
    ContextLostError,
    ForeignHandleError,
    InvalidArgumentError,
    NameConflictError,
    NonFiniteGradientError,
    NotAllowedError,
    RemoteError,
    StaleHandleError,
    TooLargeError,
    UnknownMethodError,
    UnknownNameError,
)

LR = torch.optim.lr_scheduler


@dataclass
class World:
    """An owner in the middle of a training job, and the trainer that trains."""

    owner: Server
    ps: tc.Client
    net: tc.RemoteModule
    opt: tc.DistributedOptimizer
    careful: tc.DistributedOptimizer
    scheduler: tc.DistributedScheduler
    counter: tc.RemoteObject

    def raw(self, **operation: Any) -> Awaitable[Reply]:
        return self.net.session.submit(Request(**operation), None, lambda reply, _: reply)

    async def backward(self, *gradients: Any, outputs: list[int], call: int = 1) -> None:
        """A backward of a recorded call with whatever gradients."""
        async with self.ps.context() as ctx:
            await self.net(torch.ones(5, 3))
            payload = PayloadWriter()
            message = BackwardRequest(context=ctx.id.to_message(), call=call, outputs=outputs)
            Encoder(payload).encode_into(message.gradients, list(gradients))
            await self.net.session.submit(Request(backward=message), payload, lambda reply, _: reply)

    async def train(self) -> None:
        """One good step, so that there is a state to spoil."""
        async with self.ps.context() as ctx:
            await ctx.backward((await self.net(torch.ones(5, 3))).square().sum())
            await self.opt.step(ctx)
        await self.scheduler.step()
        await self.counter.add(3)


async def make_world(owner: Server, ps: tc.Client) -> World:
    net = await ps.module(AFFINE, 3, 2, name="net", seed=0)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, momentum=0.9)
    careful = await ps.optimizer(torch.optim.Adam, net.parameters(), name="careful", lr=0.1, non_finite="refuse")
    scheduler = await ps.scheduler(LR.StepLR, opt, 1)
    counter = await ps.create(COUNTER, 4, name="counter")
    world = World(owner, ps, net, opt, careful, scheduler, counter)
    await world.train()
    return world


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[World]:
    async with serving(Limits(max_message_bytes=MIB)) as owner, tc.connect(owner.address) as ps:
        yield await make_world(owner, ps)


def load(changes: dict[str, Any]) -> Callable[[World], Awaitable[Any]]:
    async def attempt(world: World) -> None:
        await world.net.load_state_dict({**await world.net.state_dict(), **changes})

    return attempt


def load_optimizer(change: Callable[[dict[str, Any]], Any]) -> Callable[[World], Awaitable[Any]]:
    async def attempt(world: World) -> None:
        state = await world.opt.state_dict()
        change(state)
        await world.opt.remotes["ps0"].load_state_dict(state)

    return attempt


async def refused_nan(world: World) -> None:
    async with world.ps.context() as ctx:
        await ctx.backward((await world.net(torch.ones(1, 3))).sum() * math.nan)
        await world.careful.step(ctx)


async def refused_infinity(world: World) -> None:
    async with world.ps.context() as ctx:
        await ctx.backward((await world.net(torch.full((1, 3), math.inf))).sum())
        await world.careful.step(ctx)


async def ended_locally(world: World) -> None:
    async with world.ps.context() as ctx:
        loss = (await world.net(torch.ones(1, 3))).sum()
    await ctx.backward(loss)


async def ended_before_its_step(world: World) -> None:
    async with world.ps.context() as ctx:
        pass
    await world.opt.step(ctx)


async def ended_on_the_owner(world: World) -> None:
    async with world.ps.context() as ctx:
        await world.net(torch.ones(1, 3))
    await world.ps.status()
    call = CallRequest(target=world.net.ref.to_message(), context=ctx.id.to_message(), call=2)
    Encoder(None).encode_into(call.args, (torch.ones(1, 3),))
    await world.raw(call=call)


async def lost(world: World) -> None:
    context = ContextId(world.net.session.trainer, 99).to_message()
    await world.raw(backward=BackwardRequest(context=context, call=1, gradients=Encoder(None).encode([])))


async def context_without_a_trainer(world: World) -> None:
    context = ContextId(b"short", 1).to_message()
    await world.raw(call=CallRequest(target=world.net.ref.to_message(), context=context, call=1))


async def stale(world: World) -> None:
    await world.raw(fetch=FetchRequest(target=world.net.ref._replace(object_id="0" * 32).to_message()))


async def foreign(world: World) -> None:
    await world.raw(fetch=FetchRequest(target=world.net.ref._replace(owner="ps7").to_message()))


async def not_an_optimizer(world: World) -> None:
    async with world.ps.context() as ctx:
        request = StepRequest(optimizer=world.counter.ref.to_message(), context=ctx.id.to_message())
        await world.raw(step=request)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


Attempt = Callable[[World], Awaitable[Any]]
Row = tuple[str, Attempt, type[tc.PsError], str]

TABLE: list[Row] = [
    # Unknown names
    ("attach", lambda w: w.ps.attach("nothing"), UnknownNameError, "hosts nothing under the name 'nothing'"),
    ("delete", lambda w: w.ps.delete("nothing"), UnknownNameError, "hosts nothing under the name 'nothing'"),
    ("method", lambda w: w.counter.call("substract"), UnknownMethodError, "trainers may call add, echo, fail"),
    ("mark", lambda w: w.net.call("private"), NotAllowedError, "mark it with @remote"),
    (
        "parameter",
        lambda w: w.raw(fetch=FetchRequest(target=w.net.ref._replace(parameter="wait").to_message())),
        UnknownNameError,
        "has no parameter 'wait'; it has weight, bias",
    ),
    # Handles
    ("stale", stale, StaleHandleError, "Ask for it again as at the beginning"),
    ("foreign", foreign, ForeignHandleError, "belongs to owner 'ps7'; this is 'ps0'"),
    ("no handle", lambda w: w.ps.attach("ps://ps0/xyz"), InvalidArgumentError, "is not a handle; one looks like"),
    ("unset handle", lambda w: w.raw(fetch=FetchRequest()), ForeignHandleError, "this is 'ps0'"),
    ("no optimizer", not_an_optimizer, InvalidArgumentError, "is not an optimizer"),
    # Wrong arguments
    ("constructor", lambda w: w.ps.create(COUNTER, 1, 2, 3), RemoteError, "positional arguments but 4 were given"),
    ("keyword", lambda w: w.net(torch.ones(1, 3), scale=2), RemoteError, "unexpected keyword argument 'scale'"),
    ("value", lambda w: w.ps.module("torch.nn.Linear", -1, 2), RemoteError, "negative dimension"),
    ("name", lambda w: w.ps.create(COUNTER, 5, name="counter"), NameConflictError, "Ask with the same arguments"),
    (
        "name of another kind",
        lambda w: w.ps.optimizer(torch.optim.SGD, w.net.parameters(), name="counter", lr=1.0),
        NameConflictError,
        "'counter' exists already",
    ),
    (
        "other options",
        lambda w: w.ps.optimizer(torch.optim.SGD, w.net.parameters(), lr=0.2, momentum=0.9),
        NameConflictError,
        "set_options",
    ),
    ("no parameters", lambda w: w.ps.optimizer(torch.optim.SGD, [], lr=0.1), InvalidArgumentError, "empty list"),
    (
        "a module as parameters",
        lambda w: w.ps.optimizer(torch.optim.SGD, [w.net], lr=0.1),
        InvalidArgumentError,
        r"a module's handle has parameters\(\)",
    ),
    (
        "unknown option",
        lambda w: w.ps.optimizer(torch.optim.SGD, w.net.parameters(), name="new", lr=0.1, speed=3),
        InvalidArgumentError,
        "refuses its arguments.*'speed'",
    ),
    (
        "option out of range",
        lambda w: w.ps.optimizer(torch.optim.SGD, w.net.parameters(), name="new", lr=-1.0),
        InvalidArgumentError,
        "refuses its arguments: Invalid learning rate: -1.0",
    ),
    (
        "scheduler's arguments",
        lambda w: w.ps.scheduler(LR.StepLR, w.opt, 1, 2, 3, 4, 5, name="new"),
        InvalidArgumentError,
        "StepLR refuses its arguments",
    ),
    ("unknown option later", lambda w: w.opt.set_options(speed=3), InvalidArgumentError, "no option 'speed'; it has"),
    ("group", lambda w: w.opt.set_options(group=3, lr=0.1), InvalidArgumentError, "there is no parameter group 3"),
    ("depth", lambda w: w.counter.echo(nested(30)), TooLargeError, "nested more than 24 deep"),
    # Wrong shapes and dtypes
    ("forward's shape", lambda w: w.net(torch.ones(5, 4)), RemoteError, "cannot be multiplied"),
    ("forward's dtype", lambda w: w.net(torch.ones(5, 3, dtype=torch.int64)), RemoteError, "same dtype"),
    (
        "backward's shape",
        lambda w: w.backward(torch.ones(5, 3), outputs=[0]),
        InvalidArgumentError,
        r"output 0 is torch\.float32 of shape \(5, 2\), but its gradient is torch\.float32 of shape \(5, 3\)",
    ),
    (
        "backward's dtype",
        lambda w: w.backward(torch.ones(5, 2, dtype=torch.float64), outputs=[0]),
        InvalidArgumentError,
        r"but its gradient is torch\.float64",
    ),
    ("an output", lambda w: w.backward(torch.ones(1), outputs=[7]), InvalidArgumentError, "output 7 of the call"),
    ("no tensor", lambda w: w.backward("one", outputs=[0]), InvalidArgumentError, "all of them tensors"),
    ("too few", lambda w: w.backward(outputs=[0]), InvalidArgumentError, "1 outputs need as many gradients"),
    ("a call", lambda w: w.backward(torch.ones(5, 2), outputs=[0], call=8), ContextLostError, "run forward again"),
    ("state's shape", load({"bias": torch.ones(3)}), InvalidArgumentError, r"'bias'.* has shape \(2,\).*brings \(3,\)"),
    (
        "state's dtype",
        load({"weight": torch.ones(3, 2), "bias": torch.ones(2, dtype=torch.complex64)}),
        InvalidArgumentError,
        r"'bias'.* is torch\.float32, the state brings torch\.complex64",
    ),
    ("state's type", load({"weight": torch.ones(3, 2), "bias": "two"}), InvalidArgumentError, "the state brings str"),
    ("state's keys", load({"offset": torch.ones(2)}), InvalidArgumentError, r"missing \[\], unexpected \['offset'\]"),
    ("no state", lambda w: w.net.load_state_dict([1]), InvalidArgumentError, "a state is a dict, not a list"),
    (
        "optimizer's shape",
        load_optimizer(lambda state: state["state"][1].update(momentum_buffer=torch.ones(7))),
        InvalidArgumentError,
        r"'momentum_buffer' of parameter 1 has shape \(7,\), the parameter \(2,\)",
    ),
    (
        "optimizer's parameters",
        load_optimizer(lambda state: state["state"].update({9: {}})),
        InvalidArgumentError,
        r"the state names parameters \['9'\] of no group",
    ),
    (
        "optimizer's groups",
        load_optimizer(lambda state: state["param_groups"].append({"params": []})),
        InvalidArgumentError,
        r"the state has groups of \[2, 0\] parameters, this optimizer has \[2\]",
    ),
    ("optimizer's keys", load_optimizer(dict.clear), InvalidArgumentError, "'state' and 'param_groups'"),
    (
        "scheduler's keys",
        lambda w: w.scheduler.load_state_dict({"optimizer": None, "step": 1}),
        InvalidArgumentError,
        r"'last_epoch', 'step_size'\], not \['optimizer', 'step'\]",
    ),
    # Contexts
    ("ended here", ended_locally, ContextEndedError, "open a new one for a new pass"),
    ("ended before step", ended_before_its_step, ContextEndedError, "open a new one for a new pass"),
    ("ended there", ended_on_the_owner, ContextEndedError, "Open a new one for a new pass"),
    ("lost", lost, ContextLostError, "run forward again"),
    ("no trainer", context_without_a_trainer, InvalidArgumentError, "named by the 16 bytes of its trainer"),
    # Numbers that were refused
    ("NaN", refused_nan, NonFiniteGradientError, "Skip this batch, lower the learning rate, or clip"),
    ("infinity", refused_infinity, NonFiniteGradientError, "holds NaN or infinity; its optimizer has applied nothing"),
    # Limits
    (
        "a request",
        lambda w: w.net(torch.ones(MIB // 4 + 1)),
        TooLargeError,
        "1,048,580 bytes of tensors; owner 'ps0' accepts at most 1,048,576. Send them in smaller pieces, or raise max",
    ),
    (
        "a reply",
        lambda w: w.net.both(torch.ones(80_000, 3)),
        TooLargeError,
        "the reply has .* Ask for less at a time, or raise max_message",
    ),
]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("attempt", "error", "words"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
async def test_each_is_a_typed_error_that_changes_nothing(
    world: World, attempt: Attempt, error: type[tc.PsError], words: str
) -> None:
    before = fingerprint(world.owner.engine)
    with pytest.raises(error, match=words) as caught:
        await attempt(world)
    assert isinstance(caught.value, error) and type(caught.value).code == error.code
    await world.ps.status()
    assert fingerprint(world.owner.engine) == before


NOT_HOSTED = [
    *("os.system", "builtins.eval", "builtins.object", "builtins.__import__", "subprocess.Popen", "pickle.loads"),
    *("torch.load", "torch.nn.Module", "torch.nn.modules.module.Module", "torch.nn.functional.relu", "torch.Tensor"),
    *("torch.nn.DataParallel", "torch.nn.parallel.DistributedDataParallel", "torch.optim.SGD", "torch.hub.load"),
    *("tests.hosted_models.threading", "tests.hosted_models.Any", "tests.hosted_models.RRef", "tests.hosted_models"),
    *(
        "",
        ".",
        "Linear",
        "torch.nn.Linear.forward",
        "torch.nn.linear",
        " torch.nn.Linear",
        "torch.nn.Linear\0",
        "__main__",
    ),
]


async def why_not(making: Awaitable[Any]) -> str:
    """Why something is not made, if it is not on the list."""
    try:
        await making
    except NotAllowedError as error:
        return str(error)
    return ""


async def test_only_listed_classes_are_made(ps: tc.Client, owner: Server) -> None:
    net = await ps.module("torch.nn.Linear", 1, 1)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=1.0)
    for name in NOT_HOSTED:
        why = await why_not(ps.create(name, "echo pwned", name="x"))
        assert "allow-list; it must be decorated with @hosted in a module given" in why and "--import" in why, name
        other = "torch.nn.Linear" if name == "torch.optim.SGD" else name
        why = await why_not(ps.optimizer(other, net.parameters(), lr=1.0, name="y"))
        assert "it must be one of torch.optim, or be decorated with @hosted" in why, name
        why = await why_not(ps.scheduler(name, opt))
        assert "it must be one of torch.optim.lr_scheduler, or be decorated with @hosted" in why, name
    assert len(owner.engine.registry) == 2


async def test_a_name_whose_making_failed_can_be_made_rightly(ps: tc.Client) -> None:
    for arguments in ((-1, 2), ("three", 2), ()):
        with pytest.raises(RemoteError):
            await ps.module("torch.nn.Linear", *arguments, name="net")
    with pytest.raises(UnknownNameError):
        await ps.attach("net")
    assert (await ps.module("torch.nn.Linear", 1, 2, name="net")).parameter("weight").shape == (2, 1)


async def test_names_that_could_not_be_made_are_not_remembered(ps: tc.Client, owner: Server) -> None:
    for number in range(20):
        with pytest.raises(RemoteError):
            await ps.create(COUNTER, 1, 2, 3, name=f"name {number}")
    assert not owner.engine.registry._making


@pytest.mark.asyncio(loop_scope="module")
async def test_after_bad_input_of_every_kind_training_goes_on_as_if_nothing_had_been(world: World) -> None:
    async with serving(Limits(max_message_bytes=MIB)) as owner, tc.connect(owner.address) as ps:
        undisturbed = await make_world(owner, ps)
        for _, attempt, error, _ in TABLE:
            with pytest.raises(error):
                await attempt(world)
        for each in (world, undisturbed):
            await each.train()
        one, other = [await each.net.state_dict() for each in (world, undisturbed)]
        assert all(torch.equal(one[name], other[name]) for name in one)
        assert await world.counter.get() == await undisturbed.counter.get()
