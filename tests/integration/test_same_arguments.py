"""Tests that equal arguments attach however they are written: by name or by position, with or without defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import optim

import trainer_client as tc

COUNTER = "tests.hosted_models.Counter"

Ask = Callable[[tc.Client], Any]

SAME: list[tuple[str, Ask, Ask]] = [
    (
        "by name and by position",
        lambda ps: ps.module("torch.nn.Linear", 4, 3, name="net"),
        lambda ps: ps.module("torch.nn.Linear", out_features=3, in_features=4, name="net"),
    ),
    (
        "a default",
        lambda ps: ps.module("torch.nn.Linear", 4, 3, True, name="net"),
        lambda ps: ps.module("torch.nn.Linear", 4, 3, device=None, name="net"),
    ),
    (
        "a function as default",
        lambda ps: ps.module("torch.nn.TransformerEncoderLayer", 8, 2, 8, name="net"),
        lambda ps: ps.module(
            torch.nn.TransformerEncoderLayer, 8, 2, 8, activation=torch.nn.functional.relu, name="net"
        ),
    ),
    ("an object", lambda ps: ps.create(COUNTER, name="n"), lambda ps: ps.create(COUNTER, start=0, name="n")),
    (
        "a tensor",
        lambda ps: ps.module("torch.nn.EmbeddingBag", 2, 3, _weight=torch.ones(2, 3), padding_idx=None, name="bag"),
        lambda ps: ps.module(
            "torch.nn.EmbeddingBag", 2, 3, None, 2.0, False, "mean", False, torch.ones(2, 3), name="bag"
        ),
    ),
]


@pytest.mark.parametrize(("first", "second"), [row[1:] for row in SAME], ids=[row[0] for row in SAME])
async def test_the_same_arguments_attach(ps: tc.Client, first: Ask, second: Ask) -> None:
    made, found = await first(ps), await second(ps)
    assert made == found and made.was_made and not found.was_made


async def test_the_order_of_tensors_counts_by_name_only(ps: tc.Client) -> None:
    one, two = torch.ones(2), torch.zeros(2)
    made = await ps.create("tests.hosted_models.Pair", one, two, name="pair")
    assert made == await ps.create("tests.hosted_models.Pair", second=two, first=one, name="pair")
    with pytest.raises(tc.errors.NameConflictError):
        await ps.create("tests.hosted_models.Pair", second=one, first=two, name="pair")


async def test_a_default_that_was_changed_is_another_argument(ps: tc.Client) -> None:
    await ps.create(COUNTER, name="n")
    with pytest.raises(tc.errors.NameConflictError, match="made with start=0, not 1"):
        await ps.create(COUNTER, 1, name="n")


async def test_defaults_of_optimizers_and_schedulers_may_be_given_or_left_out(ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 4, 3, name="net")
    made = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    group = {"params": net.parameters(), "lr": 0.1}
    for asked, options in ((net.parameters(), {"momentum": 0, "nesterov": False}), ([group], {})):
        found = await ps.optimizer(optim.SGD, asked, lr=0.1, **options)
        assert repr(found) == repr(made)
    await ps.scheduler(optim.lr_scheduler.StepLR, made, 1)
    await ps.scheduler(optim.lr_scheduler.StepLR, made, step_size=1, gamma=0.1)
    with pytest.raises(tc.errors.NameConflictError, match=r"made with gamma=0\.1, not 0\.5\."):
        await ps.scheduler(optim.lr_scheduler.StepLR, made, 1, 0.5)
    with pytest.raises(tc.errors.NameConflictError, match=r"made with momentum=0, not 0\.9\."):
        await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, momentum=0.9)
