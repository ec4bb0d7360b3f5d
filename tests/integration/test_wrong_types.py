"""Tests that an argument of a wrong type is named, with what it should be, instead of an error from the inside."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import trainer_client as tc

ADDRESS = "127.0.0.1:1"
X = torch.ones(3, 4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tls": "ca.pem"}, r"tls is tc\.TLS\(ca=…, cert=…, key=…\), not 'ca\.pem'"),
        ({"tls": True}, "tls is .*, not True"),
        ({"namespace": 3}, "namespace is a text, not 3"),
        ({"token": 3}, "token= is a text, or the Path of a file, not a int"),
        ({"on_state": "print"}, "on_state is a function that takes a state, not 'print'"),
        ({"seed": "a"}, "a seed is a whole number, not 'a'"),
        ({"directory": 50051}, "directory= is the address of an owner, several in a list, or a function, not 50051"),
        ({"directory": [None]}, r"directory= is .*, not \[None\]"),
    ],
    ids=str,
)
def test_connect_names_it_at_once(given: dict[str, Any], message: str) -> None:
    with pytest.raises(tc.errors.InvalidArgumentError, match=message):
        tc.connect(*(() if "directory" in given else (ADDRESS,)), **given)


@pytest.fixture(scope="module")
def ps() -> Iterator[Any]:
    with tc.local() as ps:
        yield ps


@pytest.fixture(scope="module")
def net(ps: Any) -> Any:
    return ps.module(nn.Linear, 4, 2, name="net")


Mistake = Callable[[Any, Any], Any]

NAMES_AND_FLAGS: list[tuple[str, Mistake, str]] = [
    ("a name", lambda ps, _: ps.module(nn.Linear, 4, 2, name=3), "name is a text, not 3"),
    (
        "a handle as a name",
        lambda ps, net: ps.create("torch.nn.Linear", 4, 2, name=net),
        "name is a text, not <RemoteM",
    ),
    (
        "an owner",
        lambda ps, _: ps.module(nn.Linear, 4, 2, owner=["ps0"]),
        "the name of an owner is a text, not ['ps0']",
    ),
    (
        "an owner of a function",
        lambda ps, _: ps.call(torch.add, 1, 2, owner=torch.ones(2)),
        "the name of an owner is a",
    ),
    ("a target", lambda ps, _: ps.move("net", to=0), "the name of an owner is a text, not 0"),
    ("a drained owner", lambda ps, _: ps.drain(None), "the name of an owner is a text, not None"),
    ("replace", lambda ps, _: ps.module(nn.Linear, 4, 2, name="n", replace="no"), "replace is True or False, not 'no'"),
    ("a seed", lambda ps, _: ps.module(nn.Linear, 4, 2, seed=0.5), "a seed is a whole number, not 0.5"),
    ("a seed of calls", lambda _, net: net.options(seed="1")(X), "a seed is a whole number, not '1'"),
    (
        "a name of an optimizer",
        lambda ps, net: ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, name=["o"]),
        "name is a text, not ['o']",
    ),
    ("an optimizer by its name", lambda ps, _: ps.optimizer(name=torch.ones(2)), "name is a text, not tensor("),
    ("a scheduler by its name", lambda ps, _: ps.scheduler(name=1), "name is a text, not 1"),
    (
        "reads",
        lambda ps, net: ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, reads=["consistent"]),
        "reads is one of ['consistent', 'inconsistent'] and non_finite one of",
    ),
    (
        "non_finite",
        lambda ps, net: ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, non_finite={}),
        "non_finite one of ['apply', 'refuse']",
    ),
    ("reads of a replica", lambda _, net: net.replica(reads=[]), "reads are 'consistent' or 'inconsistent', not []"),
    ("a parameter", lambda _, net: net.parameter(0), "the name of a parameter is a text, not 0"),
    ("a method", lambda _, net: net.remote(X), 'the name of a method, as in net.remote("forward", x), is a text, not'),
    ("freezing", lambda _, net: net.requires_grad_("no"), "requires_grad is True or False, not 'no'"),
    ("freezing some", lambda ps, net: ps.requires_grad_([net], None), "requires_grad is True or False, not None"),
    ("a mode", lambda _, net: net.train("eval"), "mode is True or False, not 'eval'"),
]


@pytest.mark.parametrize(
    ("mistake", "text"), [row[1:] for row in NAMES_AND_FLAGS], ids=[row[0] for row in NAMES_AND_FLAGS]
)
def test_names_and_flags(ps: Any, net: Any, mistake: Mistake, text: str) -> None:
    with pytest.raises(tc.errors.InvalidArgumentError, match=re.escape(text)):
        mistake(ps, net)


def ordinary(_: object) -> int:
    return 1


async def coroutine(_: object) -> int:
    return 1


def test_run_with_a_coroutine_function_in_the_blocking_client(ps: Any) -> None:
    with pytest.raises(tc.errors.InvalidArgumentError, match=r"step of run\(\) is an ordinary function with the bloc"):
        ps.run(coroutine)
    assert ps.run(ordinary) == 1


async def test_run_with_an_ordinary_function_in_the_other() -> None:
    async with tc.local() as ps:
        with pytest.raises(
            tc.errors.InvalidArgumentError, match=r"step of run\(\) is a coroutine function, `async def step"
        ):
            await ps.run(ordinary)
        assert await ps.run(coroutine) == 1


@pytest.mark.parametrize("given", [{"step": None}, {"step": ordinary, "attach": [ordinary]}], ids=["step", "attach"])
def test_run_with_no_function(ps: Any, given: dict[str, Any]) -> None:
    with pytest.raises(
        tc.errors.InvalidArgumentError, match=r"run\(step, …, attach=…\) takes functions, and (step|att)"
    ):
        ps.run(**given)


@pytest.mark.parametrize("blocks", [True, False])
async def test_run_that_attaches_in_the_wrong_way(blocks: bool) -> None:
    """The first attempt is lost, and the second asks for the handles again."""

    def lose(_: object) -> None:
        raise tc.errors.ContextLostError("lost")

    async def lose_later(ctx: object) -> None:
        lose(ctx)

    def run() -> None:
        with tc.local() as ps:
            ps.run(lose, attach=lambda: coroutine(None))

    with pytest.raises(tc.errors.InvalidArgumentError, match=r"attach of run\(\) is a"):
        if blocks:
            await asyncio.to_thread(run)
        else:
            async with tc.local() as ps:
                await ps.run(lose_later, attach=lambda: ordinary(None))


@pytest.mark.parametrize("stale", [None, "scale"])
def test_what_becomes_of_stale_gradients(ps: Any, net: Any, stale: Any) -> None:
    policy = tc.policies.Async(stale=stale)
    text = rf"stale= is one of Apply\(…\), Scale\(…\), Reject\(…\), Compensate\(…\), not {stale!r}"
    with pytest.raises(tc.errors.InvalidArgumentError, match=text):
        ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, name="stale", policy=policy)
