"""Tests that common mistakes get an answer that says what to do instead: a table of mistakes and messages."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn import functional as F

import trainer_client as tc


class World(NamedTuple):
    """What a beginner has: a client, a module, its optimizer, an open pass, and a result that was not awaited."""

    ps: tc.Client
    net: tc.RemoteModule
    opt: tc.DistributedOptimizer
    ctx: tc.Context
    result: Any
    loss: torch.Tensor


@pytest.fixture
async def world(ps: tc.Client) -> AsyncIterator[World]:
    net = await ps.module("torch.nn.Linear", 4, 3, name="net")
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    async with ps.context() as ctx:
        pending = net(torch.ones(2, 4))
        loss = (await net(torch.ones(2, 4))).sum()
        yield World(ps, net, opt, ctx, pending, loss)
        await pending


Mistake = Callable[[World], Any]

BEFORE = "before it has come: `await` it first"

MISTAKES: list[tuple[str, Mistake, type[Exception], str]] = [
    # Results
    ("a method of a result", lambda w: w.result.sum(), AttributeError, f"no 'sum' {BEFORE}"),
    ("arithmetic", lambda w: w.result + 1, TypeError, BEFORE),
    ("arithmetic with a tensor", lambda w: torch.ones(3) * w.result, TypeError, "`await` it first"),
    ("a function of torch", lambda w: torch.sum(w.result), TypeError, "sum was given a result that may not have come"),
    ("a loss", lambda w: F.mse_loss(w.result, torch.ones(2, 3)), TypeError, "mse_loss was given a result"),
    ("an index", lambda w: w.result[0], TypeError, BEFORE),
    ("a loop", lambda w: list(w.result), TypeError, BEFORE),
    ("a number", lambda w: float(w.result), TypeError, BEFORE),
    ("waiting in the loop", lambda w: w.net(torch.ones(1, 4)).wait(), RuntimeError, "use await"),
    # Passes and optimizers
    ("loss.backward()", lambda w: w.loss.backward(), RuntimeError, "call ctx.backward(loss)"),
    ("a vector", lambda w: w.ctx.backward(w.loss.expand(2)), RuntimeError, "only for scalar outputs"),
    ("step without a pass", lambda w: w.opt.step(), tc.InvalidArgumentError, "await opt.step(ctx)"),  # type: ignore[call-overload]
    ("step of a loss", lambda w: w.opt.step(w.loss), tc.InvalidArgumentError, "takes the context of the pass"),  # type: ignore[call-overload]
    ("zero_grad", lambda w: w.opt.zero_grad(), AttributeError, "nothing to zero: gradients belong to a pass"),
    ("param_groups", lambda w: w.opt.param_groups, AttributeError, "opt.set_options(lr=…)"),
    (
        "another learning rate",
        lambda w: w.ps.optimizer(torch.optim.SGD, w.net.parameters(), lr=0.05),
        tc.NameConflictError,
        "made with lr=0.1, not 0.05. Ask with the same arguments, change them for all trainers with set_options()",
    ),
    (
        "an optimizer of a module",
        lambda w: w.ps.optimizer(torch.optim.SGD, w.net, name="other", lr=0.1),  # type: ignore[arg-type]
        TypeError,
        "net.parameters()",
    ),
    # Handles
    ("a tensor of a handle", lambda w: w.net.weight, AttributeError, "`parameters()` gives handles to train"),
    ("moving a handle", lambda w: w.net.cuda(), AttributeError, "`ps-service serve --device`"),
    ("the gradient of a handle", lambda w: w.net.parameters()[0].grad, AttributeError, "`ctx.get_gradients()`"),
    (
        "clipping handles",
        lambda w: torch.nn.utils.clip_grad_norm_(w.net.parameters(), 1.0),  # type: ignore[arg-type]
        AttributeError,
        "`ctx.clip_grad_norm(…)`",
    ),
    ("an object for a class", lambda w: w.ps.module(torch.nn.Linear(2, 2)), tc.InvalidArgumentError, "give the class"),  # type: ignore[arg-type]
    ("a class that is not offered", lambda w: w.ps.module(World), tc.NotAllowedError, "--import"),  # type: ignore[arg-type]
    ("a name that is not there", lambda w: w.ps.attach("nothing"), tc.UnknownNameError, "under the name 'nothing'"),
    ("a tensor elsewhere", lambda w: w.net(torch.ones(2, 4, device="meta")), tc.InvalidArgumentError, "meta device"),
    ("a wrong shape", lambda w: w.net(torch.ones(2, 5)), tc.RemoteError, "2x5 and 4x3"),
]


@pytest.mark.parametrize(("mistake", "error", "text"), [row[1:] for row in MISTAKES], ids=[row[0] for row in MISTAKES])
async def test_a_mistake_is_answered(world: World, mistake: Mistake, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        made = mistake(world)
        if inspect.isawaitable(made):
            await made


async def test_the_traceback_of_a_hosted_module_has_its_own_lines(world: World) -> None:
    with pytest.raises(tc.RemoteError) as caught:
        await world.net(torch.ones(2, 5))
    frames = re.findall(r"File .*, line \d+, in (\w+)", caught.value.remote_traceback)
    assert frames == ["forward"]
