"""Random graphs of calls whose arguments are results that have not come yet: every number is what local torch gives.

A graph is a list of calls. Each argument is the result of an earlier call, awaited before or not, or a local tensor, or
what a local operation makes of one. The number of a test is its seed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import trainer_client as tc
from tests.graph_models import DTYPE, SIZE, Mix, Spoils
from tests.training import same, same_gradients, twin

GRAPHS = 12
ROWS = 3


class Kind(NamedTuple):
    """A kind of module: its class on the owner, how a twin is made, its number of inputs, and how it is called."""

    cls: str
    make: Callable[[], nn.Module]
    inputs: int
    call: Callable[..., Any]


KINDS = (
    Kind("torch.nn.Linear", lambda: nn.Linear(SIZE, SIZE, dtype=DTYPE), 1, lambda f, x: f(x)),
    Kind("torch.nn.Tanh", nn.Tanh, 1, lambda f, x: f(x)),
    Kind("torch.nn.Bilinear", lambda: nn.Bilinear(SIZE, SIZE, SIZE, dtype=DTYPE), 2, lambda f, x, y: f(x, y)),
    Kind("tests.graph_models.Spoils", Spoils, 1, lambda f, x: f(x)),
    Kind(
        "tests.graph_models.Mix",
        Mix,
        3,
        lambda f, x, y, z: f({"first": x, "rest": [y, torch.arange(ROWS)]}, gate=z),
    ),
)


class Call(NamedTuple):
    """A call, the places of its arguments, which of them are awaited or used in local operations, and grad mode."""

    module: int
    inputs: tuple[int, ...]
    awaited: tuple[bool, ...]
    local: tuple[bool, ...]
    graded: bool


class Program:
    """A random graph."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.owners = rng.choice([1, 1, 2])
        self.modules = [(rng.randrange(len(KINDS)), rng.randrange(self.owners)) for _ in range(rng.randint(2, 4))]
        self.leaves = [rng.random() < 0.5 for _ in range(rng.randint(1, 2))]
        self.calls: list[Call] = []
        for number in range(rng.randint(3, 9)):
            values = len(self.leaves) + number
            module = rng.randrange(len(self.modules))
            count = KINDS[self.modules[module][0]].inputs
            inputs = tuple(max(rng.randrange(values) for _ in range(2)) for _ in range(count))
            awaited = tuple(rng.random() < 0.15 for _ in range(count))
            local = tuple(rng.random() < 0.1 for _ in range(count))
            self.calls.append(Call(module, inputs, awaited, local, rng.random() < 0.9))
        self.roots = rng.randint(1, 2)
        self.retained = rng.random() < 0.4
        self.rng = rng


async def remote(program: Program, modules: list[Any], leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    """Runs a program with handles; only what has to be is awaited before the end."""
    values: list[Any] = list(leaves)
    for call in program.calls:
        given = []
        for place, awaited, local in zip(call.inputs, call.awaited, call.local, strict=True):
            value = values[place]
            if (awaited or local) and isinstance(value, tc.Pending):
                value = await value
            given.append(value.sin() if local else value)
        kind, _ = program.modules[call.module]
        with torch.set_grad_enabled(call.graded):
            values.append(KINDS[kind].call(modules[call.module], *given))
    awaited = await asyncio.gather(*(value for value in values if isinstance(value, tc.Pending)))
    return [*leaves, *awaited]


def here(program: Program, modules: list[nn.Module], leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    """Runs a program with local twins."""
    values = list(leaves)
    for call in program.calls:
        pairs = zip(call.inputs, call.local, strict=True)
        # A copy, because a remote module writes to its own.
        with torch.set_grad_enabled(True):
            given = [(values[place].sin() if local else values[place]) for place, local in pairs]
        with torch.set_grad_enabled(call.graded):
            kind, _ = program.modules[call.module]
            result = KINDS[kind].call(modules[call.module], *(each.clone() for each in given))
        values.append(result if call.graded else result.detach())
    return values


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("seed", range(GRAPHS))
async def test_values_and_gradients_are_those_of_local_torch(both: tc.Client, seed: int) -> None:
    program = Program(seed)
    torch.manual_seed(seed)
    handles, twins = [], []
    for number, owner in program.modules:
        kind = KINDS[number]
        given = {"torch.nn.Linear": (SIZE, SIZE), "torch.nn.Bilinear": (SIZE, SIZE, SIZE)}.get(kind.cls, ())
        dtypes = {"dtype": DTYPE} if given else {}
        handles.append(await both.module(kind.cls, *given, owner=f"ps{owner}", **dtypes))
        twins.append(await twin(handles[-1], kind.make()))
    leaves = [torch.randn(ROWS, SIZE, dtype=DTYPE, requires_grad=wanted) for wanted in program.leaves]
    copies = [leaf.detach().clone().requires_grad_(leaf.requires_grad) for leaf in leaves]
    wanted = here(program, twins, copies)
    async with both.context() as ctx:
        found = await remote(program, handles, leaves)
        for number, (value, other) in enumerate(zip(found, wanted, strict=True)):
            same(value.detach(), other.detach(), f"seed {seed}, value {number}")
            assert value.requires_grad == other.requires_grad, f"seed {seed}, value {number}"
        possible = [place for place, value in enumerate(wanted) if value.requires_grad]
        for retain in (True, False) if program.retained else (False,):
            places = program.rng.sample(possible, min(program.roots, len(possible)))
            gradients = [torch.randn(ROWS, SIZE, dtype=DTYPE) for _ in places]
            if not places:
                continue
            await ctx.backward([found[place] for place in places], gradients, retain_graph=retain)
            torch.autograd.backward([wanted[place] for place in places], gradients, retain_graph=retain)
            pairs = list(zip(handles, twins, strict=True))
            local = {f"leaf {number}": pair for number, pair in enumerate(zip(leaves, copies, strict=True))}
            await same_gradients(ctx, pairs, local, f"seed {seed}: ")
