"""Passes on a module that changes itself have the gradients of torch, whatever other passes and steps do between."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from ps_service.hosting.turns import Turn, Turns
from ps_service.parameters.locks import ParameterLocks
from ps_service.passes.call_frame import CallFrame
from tests.ps_service.passes.viewed import Viewed, expected

IDS = torch.tensor([1, 3, 1])
THREADS, PASSES = 3, 15


class Odd(nn.Module):
    """Counts, keeps references to a parameter, and has a hook, a closure and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.a, self.norm, self.b = nn.Embedding(20, 8), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 6)
        self.calls, self.hooked, self.seen = 0, [0], {"rows": 0}
        self.also, self.by = [self.b.weight], {self.b.weight: 2.0}
        self.act = lambda h: torch.relu(self.norm(self.a(h)))
        self.b.weight.register_hook(self.count)

    def count(self, gradient: torch.Tensor) -> None:
        self.hooked[0] += 1

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen["rows"] += len(ids)
        h = self.act(self.table(ids))
        h.register_hook(lambda gradient: gradient * self.a.bias.exp())
        return h @ self.also[0].t() * self.by[self.b.weight] + self.b(h)  # type: ignore[no-any-return]


class Penalized(nn.Module):
    """Differentiates in its forward, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.a, self.calls = nn.Embedding(20, 8), nn.Linear(8, 4), 0

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = self.table(ids)
        y = torch.tanh(self.a(x))
        (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return y + slope.square().sum(-1, keepdim=True)


class Transformed(nn.Module):
    """Uses a transform of torch.func, which refuses hooks of saved tensors, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.a, self.calls = nn.Embedding(20, 8), nn.Linear(8, 4), 0

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = self.table(ids)

        def energy(each: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.a(each)).square().sum()

        return torch.func.grad(energy)(x) @ self.a.weight.t() + self.a(x)


@pytest.mark.parametrize("cls", [Odd, Penalized, Transformed])
def test_many_threads_pass_and_step_on_a_module_that_changes_itself(cls: type[Any]) -> None:
    torch.manual_seed(1)
    viewed = Viewed(cls(), IDS)
    module: Any = viewed.hosted.value
    reference, wrong, lock = cls(), [], threading.Lock()
    begun = module.calls

    def train(seed: int) -> None:
        choose, numbers = random.Random(seed), torch.Generator().manual_seed(seed)
        for number in range(PASSES):
            ids = torch.randint(0, 20, (4,), generator=numbers)
            forward = viewed.forward(ids)
            gradient = torch.randn(forward.result.shape, generator=numbers)
            if choose.random() < 0.5:
                viewed.step()
            found = forward.backward(gradient)
            with lock:
                if not all(map(torch.equal, found, expected(reference, viewed.history[forward.steps], ids, gradient))):
                    wrong.append((seed, number))
            viewed.step(found)

    threads = [threading.Thread(target=train, args=(seed,)) for seed in range(THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong
    assert not viewed.has_views
    assert module.calls - begun == THREADS * PASSES
    if isinstance(module, Odd):
        assert module.hooked == [THREADS * PASSES]
        assert module.seen["rows"] == 4 * THREADS * PASSES + 3 * begun
        assert int(module.norm.num_batches_tracked) == module.calls


def test_modules_that_share_parameters_take_turns_together() -> None:
    inner, beside = Viewed(nn.Linear(3, 3)), Viewed(nn.Linear(3, 3))
    outer = Viewed(nn.Sequential(inner.hosted.value), locks=inner.locks)
    assert inner.hosted.views.turns is outer.hosted.views.turns is not beside.hosted.views.turns
    first, second = Viewed(nn.Linear(3, 3), locks=inner.locks), Viewed(nn.Linear(3, 3), locks=inner.locks)
    whole = Viewed(nn.Sequential(first.hosted.value, outer.hosted.value, second.hosted.value), locks=inner.locks)
    assert len({id(each.hosted.views.turns) for each in (inner, outer, first, second, whole)}) == 1


def test_a_call_waits_for_one_on_a_module_with_the_same_parameters() -> None:
    inner = Viewed(nn.Linear(3, 3, bias=False))
    outer = Viewed(nn.Sequential(inner.hosted.value), locks=inner.locks)
    x, results = torch.ones(1, 3), []
    with CallFrame(outer.locks, True, recorded=True, code="forward") as frame:
        frame.bind(outer.hosted, is_target=True)
        thread = threading.Thread(target=lambda: results.append(inner.forward(x).result))
        thread.start()
        thread.join(0.05)
        assert not results, "it has the parameters to itself, maybe in memory of their own"
        value = outer.parameters[0].detach().clone()
    thread.join()
    assert torch.equal(results[0], x @ value.t())
    inner.step()
    assert torch.equal(outer.forward(x).result, x @ (value / 2).t())


def test_a_call_of_two_modules_has_one_leaf_for_a_parameter_of_both() -> None:
    inner = Viewed(nn.Linear(3, 3, bias=False))
    outer = Viewed(nn.Sequential(inner.hosted.value, nn.Linear(3, 1)), locks=inner.locks)
    with CallFrame(inner.locks, True, recorded=True, code="both") as frame:
        both = frame.bind(inner.hosted), frame.bind(outer.hosted)
        result = frame.own(both[0](torch.ones(1, 3)).sum() + both[1](torch.ones(1, 3)).sum())
        del both
    assert [each.parameter for each in frame.leaves] == [*inner.parameters, *outer.parameters[1:]]
    assert len(frame.steps) == len(frame.leaves)
    del result


class Other(nn.Module):
    """Computes with other weights, in the place of those of a part."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        other = {name: 2 * each for name, each in self.net.named_parameters()}
        return torch.func.functional_call(self.net, other, (x,))  # type: ignore[no-any-return]


class Hooked(Other):
    """Has a hook for the length of a call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        handle = self.net.register_forward_hook(lambda *given: given[2] * 2)
        found: torch.Tensor = self.net(x)
        handle.remove()
        return found


class Frozen(Other):
    """Freezes a part for the length of a call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.net.requires_grad_(False)
        found: torch.Tensor = self.net(x)
        self.net.requires_grad_(True)
        return found * self.net.bias


@pytest.mark.parametrize("cls", [Other, Hooked, Frozen])
def test_calls_that_change_their_module_and_change_it_back_take_turns(cls: type[nn.Module]) -> None:
    viewed = Viewed(cls())
    for _ in range(5):
        viewed.forward(torch.ones(1, 3))
    assert not viewed.has_views


class Conjugate(nn.Module):
    """Has a parameter whose memory holds its conjugate."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3, dtype=torch.complex64).conj())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight @ x).abs()


def test_calls_of_a_module_with_a_conjugate_parameter_give_it_back() -> None:
    module = Conjugate()
    assert module.weight.is_conj()
    x = torch.ones(3, 1, dtype=torch.complex64)
    viewed = Viewed(module, x)
    for _ in range(5):
        result = viewed.forward(x).result
        assert torch.equal(result, module(x))
    assert all(state.visible is None for state in viewed.hosted.parameter_states)


@contextmanager
def _failing() -> Iterator[None]:
    yield
    raise MemoryError


def test_a_turn_whose_end_fails_is_given_to_others() -> None:
    turns = Turns(ParameterLocks())
    turn = Turn(turns, False, [_failing])
    turn.begin()
    with pytest.raises(MemoryError):
        turn.end()
    assert turns.holder is None
