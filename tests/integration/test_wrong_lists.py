"""Tests that what is no list of parameters, no tensor, no optimizer and no scaler is named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import trainer_client as tc


class World(NamedTuple):
    """A blocking client, a module, a replica of it, its optimizer, a table, and an open pass with its loss."""

    ps: Any
    net: Any
    replica: Any
    opt: Any
    table: Any
    ctx: Any
    loss: torch.Tensor


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with tc.local() as ps:
        net, table = ps.module(nn.Linear, 4, 2, name="net"), ps.table("items", dim=2)
        opt = ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
        with ps.context() as ctx:
            loss = net(torch.ones(3, 4)).sum()
            yield World(ps, net, net.replica(), opt, table, ctx, loss)


Mistake = Callable[[World], Any]
SGD, X = torch.optim.SGD, torch.ones(3)
PARAMETERS = "an optimizer takes a list of parameters, such as net.parameters(), or of groups of them, not"
ROOTS = "backward() takes a tensor, usually the loss, or several, not"
CLIPPED = "clip_grad_norm() takes parameters, such as net.parameters(), and local tensors, not"
FROZEN = "requires_grad_() takes handles of modules and parameters, not"
SCALER = "step() takes a torch.amp.GradScaler as the scaler, not"
UNSCALED = "unscale() takes the context of the pass and the torch.amp.GradScaler of the loss"
OWNERS = 'owners= is a list of names, such as ["ps0", "ps1"], not'

MISTAKES: list[tuple[str, Mistake, str]] = [
    ("an optimizer of a tensor", lambda w: w.ps.optimizer(SGD, nn.Parameter(X), lr=0.1), f"{PARAMETERS} Parameter"),
    ("an optimizer of a number", lambda w: w.ps.optimizer(SGD, 3, lr=0.1), f"{PARAMETERS} 3"),
    ("a backward of nothing", lambda w: w.ctx.backward(None), f"{ROOTS} None"),
    ("a backward of a number", lambda w: w.ctx.backward(w.loss.item()), ROOTS),
    ("a backward of a list of numbers", lambda w: w.ctx.backward([w.loss, 1.0]), f"{ROOTS} 1.0"),
    (
        "a step of a number",
        lambda w: w.ctx.backward(w.loss, step=3),
        "step takes optimizers made by the client, not a int",
    ),
    ("clipping nothing", lambda w: w.ctx.clip_grad_norm(None, 1.0), f"{CLIPPED} None"),
    ("clipping a table", lambda w: w.ctx.clip_grad_norm([w.table], 1.0), f"{CLIPPED} <Table 'items'"),
    ("clipping modules", lambda w: w.ctx.clip_grad_norm([w.net], 1.0), f"{CLIPPED} <RemoteModule"),
    ("no norm", lambda w: w.ctx.clip_grad_norm(w.net.parameters(), None), "must be positive, not None and 2.0"),
    (
        "a norm type",
        lambda w: w.ctx.clip_grad_norm(w.net.parameters(), 1.0, "inf"),
        "must be positive, not 1.0 and 'inf'",
    ),
    ("freezing a name", lambda w: w.ps.requires_grad_("net", False), f"{FROZEN} 'net'"),
    ("freezing a tensor", lambda w: w.ps.requires_grad_([X], False), f"{FROZEN} tensor("),
    ("freezing nothing", lambda w: w.ps.requires_grad_(None, False), f"{FROZEN} None"),
    ("a loss as a scaler", lambda w: w.opt.step(w.ctx, w.loss), SCALER),
    ("a name as a scaler", lambda w: w.table.optimizer.step(w.ctx, "scaler"), f"{SCALER} 'scaler'"),
    ("unscaling the other way", lambda w: w.opt.unscale(torch.amp.GradScaler("cpu"), w.ctx), UNSCALED),
    ("unscaling with nothing", lambda w: w.opt.unscale(w.ctx, None), UNSCALED),
    ("replicas of a list", lambda w: w.ps.replicas([w.net]), "replicas() takes a module of torch with replicas inside"),
    (
        "a push with a loss as a scaler",
        lambda w: w.replica.push(w.opt, scaler=w.loss),
        "push() takes a torch.amp.GradSca",
    ),
    (
        "a push with a number as a pass",
        lambda w: w.replica.push(w.opt, context=3),
        "context= is the pass that has the grad",
    ),
    (
        "local steps with the owner's optimizer",
        lambda w: w.ps.local_steps(w.replica, w.opt, tc.LocalSGD(2)),
        "the local optimizer is one of torch, such as torch.optim.SGD(replica.parameters(), lr=0.1), not",
    ),
    (
        "nothing to look up",
        lambda w: w.ps.prefetch(None, w.table),
        "batches are what can be looped over, not a NoneType",
    ),
    (
        "an option without its name",
        lambda w: w.opt.set_options("lr", lr=0.1),
        "there is no parameter group 'lr'; there are 1",
    ),
    ("owners of this process", lambda w: tc.local(owners=["ps0"]), "owners is ['ps0']; at least one is needed"),
    ("durable owners", lambda w: w.ps.durable(3), "the name of an owner is a text, not 3"),
    ("owners of a table", lambda w: w.ps.table("other", dim=2, owners=3), f"{OWNERS} 3"),
    ("a handle as owners", lambda w: w.ps.table("other", dim=2, owners=w.net), f"{OWNERS} <RemoteModule"),
    ("a tensor as owners", lambda w: w.ps.table("other", dim=2, owners=X), f"{OWNERS} tensor("),
]


@pytest.mark.parametrize(("mistake", "text"), [row[1:] for row in MISTAKES], ids=[row[0] for row in MISTAKES])
def test_a_mistake_is_named(world: World, mistake: Mistake, text: str) -> None:
    with pytest.raises(tc.errors.InvalidArgumentError, match=re.escape(text)):
        mistake(world)


def test_one_module_is_frozen_as_a_list_of_one_is(world: World) -> None:
    net = world.ps.module(nn.Linear, 2, 1, name="frozen")
    world.ps.requires_grad_(net, False)
    assert not any(each.requires_grad for each in net.parameters())
    world.ps.requires_grad_(net.parameter("bias"))
    assert [each.requires_grad for each in net.parameters()] == [False, True]


@pytest.mark.parametrize("batches", [None, 3])
def test_progress_of_what_is_no_loop_says_that(batches: Any) -> None:
    with pytest.raises(TypeError, match="object is not iterable"):
        list(tc.progress(batches))
