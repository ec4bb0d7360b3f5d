"""Random small graphs of local and remote modules: every number and every gradient is what local autograd gives.

A graph is a list of steps over a growing list of values. It is run twice, with handles of modules on one or two owners,
and with local twins of the same modules; then both are propagated, once or several times. The number of a test is its
seed: the same number always makes the same graph.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

import trainer_client as tc
from tests import graph_models
from tests.graph_models import DTYPE, SIZE
from tests.training import same, same_gradients, twin

GRAPHS = 24
BATCH, ROWS = 3, 6
MODELS = "tests.graph_models"
_modules = {"torch.nn": nn, MODELS: graph_models}


@dataclass(frozen=True)
class Kind:
    """A kind of remote module: how it is made, called, and what of its result goes on."""

    cls: str
    args: tuple[Any, ...]
    inputs: int
    outputs: int
    call: Callable[..., Any]
    pick: Callable[[Any], list[torch.Tensor]] = lambda result: [result]
    kwargs: dict[str, Any] = field(default_factory=dict)


KINDS = {
    "linear": Kind("torch.nn.Linear", (SIZE, SIZE), 1, 1, lambda f, ids, x: f(x), kwargs={"dtype": DTYPE}),
    "identity": Kind("torch.nn.Identity", (), 1, 1, lambda f, ids, x: f(x)),
    "gru": Kind(
        "torch.nn.GRU",
        (SIZE, SIZE),
        1,
        2,
        lambda f, ids, x: f(x),
        lambda result: [result[0], result[1].expand(BATCH, SIZE)],
        {"dtype": DTYPE},
    ),
    "several": Kind(f"{MODELS}.Several", (), 1, 2, lambda f, ids, x: f.both(x, scale=1.5), lambda result: result["y"]),
    "mix": Kind(f"{MODELS}.Mix", (), 3, 1, lambda f, ids, x, y, z: f({"first": x, "rest": [y, ids]}, gate=z)),
    "spoils": Kind(f"{MODELS}.Spoils", (), 1, 1, lambda f, ids, x: f(x.clone())),
    "gives": Kind(f"{MODELS}.Gives", (), 0, 1, lambda f, ids: f(), lambda result: [result.expand(BATCH, SIZE)]),
    "echoes": Kind(f"{MODELS}.Echoes", (), 2, 4, lambda f, ids, x, y: f(x, y), lambda result: list(result[:4])),
    "rows": Kind(f"{MODELS}.Table", (ROWS, False), 0, 1, lambda f, ids: f(ids)),
    "sparse rows": Kind(f"{MODELS}.Table", (ROWS, True), 0, 1, lambda f, ids: f(ids)),
}


@dataclass(frozen=True)
class Call:
    """A call of a remote module; `graded` says whether gradients are switched on meanwhile."""

    module: int
    inputs: tuple[int, ...]
    graded: bool


@dataclass(frozen=True)
class Step:
    """One line of the program: an operation, the places of its operands, and for remote ones the calls."""

    name: str
    places: tuple[int, ...] = ()
    calls: tuple[Call, ...] = ()


class Program:
    """A random graph, and what it is propagated from."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.owners = rng.choice([1, 2])
        self.modules = [(rng.choice(list(KINDS)), rng.randrange(self.owners)) for _ in range(rng.randint(2, 4))]
        self.leaves = [rng.random() < 0.6 for _ in range(rng.randint(1, 3))]
        self.values = len(self.leaves)
        self.steps: list[Step] = []
        for _ in range(rng.randint(4, 9)):
            self._grow()
        self._add(Step("local", (rng.randrange(self.values),)))
        self.second = rng.random() < 0.4
        self.roots = rng.randint(1, 3)

    def _grow(self) -> None:
        rng = self.rng
        name = rng.choice(
            ["call"] * 5 + ["together"] * 2 + ["local"] * 3 + ["+", "*", "sin", "copy +=", "detach", "hook"]
        )
        if name in ("call", "together"):
            calls = tuple(self._call() for _ in range(1 if name == "call" else rng.randint(2, 3)))
            self._add(Step(name, (), calls), sum(self._kind(call).outputs for call in calls))
            if name == "call" and self.modules[calls[0].module][0] in ("linear", "mix") and rng.random() < 0.3:
                self._add(Step("+=", (self.values - 1, rng.randrange(self.values - 1))), 0)
        elif name == "hook":
            self._add(Step(name, (rng.randrange(self.values),)), 0)
        else:
            self._add(Step(name, tuple(rng.randrange(self.values) for _ in range(2))))

    def _call(self) -> Call:
        module = self.rng.randrange(len(self.modules))
        inputs = KINDS[self.modules[module][0]].inputs
        # Late values are preferred, so that graphs grow deep and not only wide.
        places = (max(self.rng.randrange(self.values) for _ in range(2)) for _ in range(inputs))
        return Call(module, tuple(places), self.rng.random() < 0.9)

    def _add(self, step: Step, values: int = 1) -> None:
        self.steps.append(step)
        self.values += values

    def _kind(self, call: Call) -> Kind:
        return KINDS[self.modules[call.module][0]]

    def dependencies(self) -> set[str]:
        """What this graph has, for the test that all of them together have everything."""
        used = [call for step in self.steps for call in step.calls]
        found = {step.name for step in self.steps} | {self.modules[call.module][0] for call in used}
        found |= {"no_grad" for call in used if not call.graded}
        found |= {"twice" for count in Counter(call.module for call in used).values() if count > 1}
        found |= {f"{self.owners} owners", f"{self.roots} roots"}
        return found | ({"retained"} if self.second else set())


class Run:
    """The values of a program as one side computes them.

    Args:
        program: What to run.
        leaves: Its inputs.
        ids: Its whole numbers.
        modules: What stands for the remote modules.
        local: The local module.
        remote: Whether calls of those modules have to be awaited.
    """

    def __init__(
        self, program: Program, leaves: list[torch.Tensor], ids: torch.Tensor, modules: Any, local: Any, remote: bool
    ) -> None:
        self.program, self.ids, self.modules, self.local, self.remote = program, ids, modules, local, remote
        self.values = list(leaves)

    async def forward(self) -> None:
        for step in self.program.steps:
            operands = [self.values[place] for place in step.places]
            match step.name:
                case "call" | "together":
                    await self._calls(step.calls)
                case "local":
                    self.values.append(self.local(operands[0]))
                case "hook" if operands[0].requires_grad:
                    operands[0].register_hook(_stretched)
                case "hook":
                    pass
                case "+=":
                    operands[0].add_(operands[1])
                case _:
                    self.values.append(_OPERATIONS[step.name](*operands))

    async def _calls(self, calls: tuple[Call, ...]) -> None:
        started = [self._start(call) for call in calls]
        results = await asyncio.gather(*started) if self.remote else started
        for call, result in zip(calls, results, strict=True):
            found = KINDS[self.program.modules[call.module][0]].pick(result)
            # Locally, some of them are one and the same tensor, or a parameter even without gradients.
            self.values += found if self.remote else [_own(each, call.graded) for each in found]

    def _start(self, call: Call) -> Any:
        kind = KINDS[self.program.modules[call.module][0]]
        with torch.set_grad_enabled(call.graded):
            result = kind.call(self.modules[call.module], self.ids, *(self.values[place] for place in call.inputs))
        return result


def _own(tensor: torch.Tensor, graded: bool) -> torch.Tensor:
    return tensor.view_as(tensor) if graded else tensor.detach()


def _stretched(gradient: torch.Tensor | None) -> torch.Tensor | None:
    # As with every custom Function of torch, None comes where a call has no gradient for one of several inputs.
    return None if gradient is None else gradient * 1.5


_OPERATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
    "sin": lambda a, _: a.sin(),
    "copy +=": lambda a, b: a.clone().add_(b),
    "detach": lambda a, _: a.detach(),
}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("seed", range(GRAPHS))
async def test_gradients_are_those_of_local_autograd(both: tc.Client, seed: int) -> None:
    program = Program(seed)
    torch.manual_seed(seed)
    pairs = [await _pair(both, *module) for module in program.modules]
    local = nn.Sequential(nn.Linear(SIZE, SIZE, dtype=DTYPE), nn.Tanh())
    leaves = [torch.randn(BATCH, SIZE, dtype=DTYPE, requires_grad=wanted) for wanted in program.leaves]
    ids = torch.randint(0, ROWS, (BATCH,))
    there = Run(program, leaves, ids, [handle for handle, _ in pairs], local, remote=True)
    copies = [leaf.detach().clone().requires_grad_(leaf.requires_grad) for leaf in leaves]
    here = Run(program, copies, ids, [module for _, module in pairs], copy.deepcopy(local), remote=False)
    await here.forward()
    async with both.context() as ctx:
        await there.forward()
        for number, (value, wanted) in enumerate(zip(there.values, here.values, strict=True)):
            same(value.detach(), wanted.detach(), f"seed {seed}, value {number}")
            assert value.requires_grad == wanted.requires_grad, f"seed {seed}, value {number}"
        for number, (places, gradients, retain) in enumerate(_passes(program, here.values)):
            await ctx.backward([there.values[place] for place in places], gradients, retain_graph=retain)
            torch.autograd.backward([here.values[place] for place in places], gradients, retain_graph=retain)
            ours = [*leaves, *local.parameters()]
            twins = [*copies, *here.local.parameters()]
            tensors = {f"local tensor {n}": pair for n, pair in enumerate(zip(ours, twins, strict=True))}
            await same_gradients(ctx, pairs, tensors, f"seed {seed}, pass {number}: ")
    assert all(leaf.grad is None for leaf in (*leaves, *local.parameters()))


def test_the_graphs_have_everything() -> None:
    seen = Counter(found for seed in range(GRAPHS) for found in Program(seed).dependencies())
    wanted = {*KINDS, *_OPERATIONS, "call", "together", "local", "hook", "+=", "no_grad", "twice", "retained"}
    wanted |= {"1 owners", "2 owners", "1 roots", "2 roots", "3 roots"}
    assert set(seen) == wanted
    assert min(seen.values()) >= 2, seen


async def _pair(ps: tc.Client, kind: str, owner: int) -> tuple[tc.RemoteModule, nn.Module]:
    cls, args, kwargs = KINDS[kind].cls, KINDS[kind].args, KINDS[kind].kwargs
    handle = await ps.module(cls, *args, owner=f"ps{owner}", **kwargs)
    module, _, name = cls.rpartition(".")
    return handle, await twin(handle, getattr(_modules[module], name)(*args, **kwargs))


def _passes(program: Program, values: list[torch.Tensor]) -> list[tuple[list[int], list[torch.Tensor | None], bool]]:
    """From which values to propagate, with which gradients, and whether the graph is needed again."""
    possible = [place for place, value in enumerate(values) if value.requires_grad]
    passes = []
    for retain in [True, False] if program.second else [False]:
        places = program.rng.sample(possible, min(program.roots, len(possible)))
        passes.append((places, [torch.randn(BATCH, SIZE, dtype=DTYPE) for _ in places], retain))
    return passes
