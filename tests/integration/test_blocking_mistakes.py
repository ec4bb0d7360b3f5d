"""Tests that the blocking client answers wrong arguments with the signature that its program sees."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
import torch

import trainer_client as tc
from ps_service.server import Server
from trainer_client.client.blocking import _Waiting


class World(NamedTuple):
    """What a program of the blocking client has, by what tests call it."""

    ps: Any
    objects: dict[str, Any]
    """The objects of the blocking client."""


@pytest.fixture
async def world(owner: Server) -> AsyncIterator[World]:
    connecting = tc.connect(owner.address)

    def begin() -> World:
        ps = connecting.__enter__()
        net = ps.module("torch.nn.Linear", 4, 3, name="net")
        opt = ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
        table = ps.table("users", dim=2, max_rows=4)
        both = ps.optimizer(torch.optim.SGD, [*net.parameters(), table], name="both", lr=0.1)
        replica = net.replica()
        objects = {
            "client": ps,
            "context": ps.context(),
            "module": net,
            "reference": ps.remote(torch.add, 1, 2),
            "optimizer": opt,
            "optimizer with tables": both,
            "scheduler": ps.scheduler(torch.optim.lr_scheduler.StepLR, opt, step_size=1),
            "scheduler with tables": ps.scheduler(torch.optim.lr_scheduler.StepLR, both, step_size=1),
            "table": table,
            "communicator": ps.communicator("all", 1),
            "local steps": ps.local_steps(
                replica, torch.optim.SGD(replica.parameters(), lr=0.1), tc.LocalSGD(2), name="local"
            ),
            "replica": net.replica(),
            "replicas": ps.replicas(torch.nn.Sequential(net.replica())),
        }
        return World(ps, objects)

    made = await asyncio.to_thread(begin)
    yield made
    await asyncio.to_thread(connecting.__exit__, None, None, None)


OURS = ("pull", "push", "finish", "unscale_", "local_steps")
"""The methods of replicas that are not those of torch's modules."""


def _methods(world: World) -> Iterator[tuple[str, Any, Any]]:
    """The public methods of all objects: their names, the blocking ones, and those of the asyncio client."""
    for title, blocking in world.objects.items():
        is_replica = isinstance(blocking, torch.nn.Module)
        plain = super(_Waiting, blocking) if is_replica else blocking.unwrapped
        for name in OURS if is_replica else dir(blocking):
            method = None
            with suppress(AttributeError):
                method = None if name.startswith("_") else getattr(plain, name)
            if inspect.ismethod(method) and type(method.__self__).__module__.startswith("trainer_client"):
                yield f"{title}.{name}", getattr(blocking, name), method


async def test_wrong_arguments_are_answered_with_the_method_that_was_called(world: World) -> None:
    answers = {}

    def ask() -> None:
        for title, method, asynchronous in _methods(world):
            signature = inspect.signature(asynchronous)
            takes_any = any(each.kind is each.VAR_POSITIONAL for each in signature.parameters.values())
            wrong = () if takes_any else tuple(range(50))
            try:
                signature.bind(*wrong)
            except TypeError:
                with pytest.raises(TypeError) as caught:
                    method(*wrong)
                answers[title] = str(caught.value), f"{asynchronous.__qualname__}()"

    await asyncio.to_thread(ask)
    assert {"client.prefetch", "client.module", "context.backward", "optimizer.step", "table.blocks"} <= answers.keys()
    assert {"replica.push", "replicas.local_steps", "optimizer with tables.step"} <= answers.keys()
    wrong = {title: answer for title, (answer, name) in answers.items() if not answer.startswith(name)}
    # These are other methods: the step of `run` is an ordinary function.
    assert wrong == {
        "client.run": "BlockingClient.run() missing 1 required positional argument: 'step'",
        "client.close": "BlockingClient.close() takes 1 positional argument but 51 were given",
    }


async def test_methods_show_the_signature_and_the_text_of_those_for_asyncio(world: World) -> None:
    for title, method, asynchronous in _methods(world):
        if title not in ("client.run", "client.close"):
            assert inspect.signature(method) == inspect.signature(asynchronous), title
            assert title.startswith("replica") or method.__doc__ == asynchronous.__doc__, title


@pytest.mark.parametrize("name", ["optimizer", "optimizer with tables"])
async def test_a_step_without_a_pass_says_what_it_takes(world: World, name: str) -> None:
    opt = world.objects[name]
    text = "step() takes the context of the pass: `with ps.context() as ctx: … opt.step(ctx)`"
    for given in ((), (None,), (torch.ones(1),)):
        with pytest.raises(tc.errors.InvalidArgumentError) as caught:
            await asyncio.to_thread(opt.step, *given)
        assert str(caught.value) == text


async def test_a_step_of_an_optimizer_with_tables_without_a_pass_says_so(ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 4, 3, name="net")
    table = await ps.table("users", dim=2)
    opt = await ps.optimizer(torch.optim.SGD, [*net.parameters(), table], lr=0.1)
    with pytest.raises(tc.errors.InvalidArgumentError, match=r"`async with .* await opt\.step\(ctx\)`"):
        await opt.step()


async def test_arguments_that_are_too_deep_are_refused(owner: Server) -> None:
    endless: list[Any] = []
    endless.append(endless)

    def call() -> None:
        with tc.connect(owner.address) as ps:
            net = ps.module("torch.nn.Linear", 4, 3)
            for given in (endless, {"endless": endless}):
                with pytest.raises(tc.errors.TooLargeError, match="containers"):
                    net(given)

    await asyncio.to_thread(call)
