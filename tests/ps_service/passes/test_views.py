"""Passes on views have the gradients of torch whatever steps do meanwhile, and steps move only what is in use."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest
import torch
from torch import nn

from ps_service.hosting import views
from ps_service.parameters.locks import COPY_AT_MOST
from ps_service.passes.records import Record
from ps_wire.decorators import hosted
from tests.ps_service.passes.viewed import Viewed, expected
from tests.ps_service.passes.viewed_models import ALL, KEEP_PARTS, Tied, pauses

X = torch.arange(6.0).reshape(2, 3) / 6
IDS = torch.tensor([1, 3, 1])


@pytest.fixture(params=["after clean calls", "at once"])
def eagerness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has calls run on views once they have changed nothing, and from the first on, whatever they do."""
    if request.param == "at once":
        monkeypatch.setattr(views, "CLEAN_CALLS", 0)


@pytest.mark.usefixtures("eagerness")
@pytest.mark.parametrize("cls", ALL)
def test_a_pass_has_the_values_that_it_began_with_whatever_steps_do(cls: type[nn.Module]) -> None:
    torch.manual_seed(1)
    viewed = Viewed(cls(), IDS)
    reference = copy.deepcopy(viewed.hosted.value)
    for number in range(12):
        if number % 3 and viewed.has_views:
            pauses.during = viewed.step
        forward = viewed.forward(IDS)
        gradient = torch.randn(forward.result.shape)
        if number % 2:
            viewed.step()
        found = forward.backward(gradient)
        assert all(map(torch.equal, found, expected(reference, viewed.history[forward.steps], IDS, gradient)))
        viewed.step(found)
    assert viewed.has_views is (views.CLEAN_CALLS == 0 or cls not in KEEP_PARTS)


@pytest.mark.usefixtures("eagerness")
@pytest.mark.parametrize("cls", ALL)
def test_passes_of_many_threads_with_steps_between_have_the_gradients_of_torch(cls: type[nn.Module]) -> None:
    torch.manual_seed(1)
    viewed = Viewed(cls(), IDS)
    reference, wrong, lock = copy.deepcopy(viewed.hosted.value), [], threading.Lock()

    def train(seed: int) -> None:
        choose, numbers = random.Random(seed), torch.Generator().manual_seed(seed)
        for number in range(10):
            ids = torch.randint(0, 20, (4,), generator=numbers)
            if choose.random() < 0.3 and viewed.has_views:
                pauses.during = viewed.step
            forward = viewed.forward(ids)
            gradient = torch.randn(forward.result.shape, generator=numbers)
            if choose.random() < 0.3:
                viewed.step()
            found = forward.backward(gradient)
            with lock:
                if not all(map(torch.equal, found, expected(reference, viewed.history[forward.steps], ids, gradient))):
                    wrong.append((seed, number))
            viewed.step(found)

    threads = [threading.Thread(target=train, args=(seed,)) for seed in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_a_step_moves_only_what_is_saved() -> None:
    # The table is looked up in, which saves none of it; the layer saves its weight for the gradient of its input.
    viewed = Viewed(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4)), IDS % 5)
    viewed.forward(IDS % 5)
    assert viewed.step() == [False, False, False]
    forward = viewed.forward(IDS % 5)
    assert viewed.step() == [False, True, False]
    forward.backward(torch.ones(3, 4))
    del forward
    assert viewed.step() == [False, False, False]


def test_a_large_table_is_not_copied_while_another_pass_has_looked_up_in_it() -> None:
    viewed = Viewed(nn.Embedding(COPY_AT_MOST // 16 + 1, 4), IDS)
    viewed.forward(IDS)
    viewed.step()
    open_pass = viewed.forward(IDS)
    for _ in range(3):
        assert viewed.step() == [False]
        viewed.forward(IDS).backward(torch.ones(3, 4))
    assert open_pass.backward(torch.ones(3, 4))[0].shape == viewed.parameters[0].shape


def test_what_a_running_backward_has_not_saved_is_not_copied() -> None:
    viewed = Viewed(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4)), IDS % 5)
    moved = []
    forward = viewed.forward(IDS % 5)
    # It runs before the weight is needed for the gradient of the layer's input.
    forward.result.grad_fn.register_prehook(lambda gradients: moved.append(viewed.step()))  # type: ignore[union-attr]
    record = Record([forward.result], None, 0, forward.leaves, [forward.steps] * 3)
    del forward
    found = record.backward([0], [torch.ones(3, 4)], retain_graph=False)
    assert [each.parameter for each in found.of_parameters] == viewed.parameters
    assert moved == [[False, True, False]]


def test_tied_parameters_and_classes_are_those_of_the_module() -> None:
    module = Tied()
    viewed = Viewed(module, IDS)
    assert viewed.hosted.views is not None
    view = viewed.hosted.views.begin(True)[0].module
    assert isinstance(view, Tied) and view is not module and view.out.weight is view.table.weight
    assert view.training and [name for name, _ in view.named_parameters()] == [n for n, _ in module.named_parameters()]
    assert type(view.table) is nn.Embedding and view.state_dict().keys() == module.state_dict().keys()


@hosted(turns=True)
class InTurns(Tied):
    pass


class Heir(InTurns):
    pass


@pytest.mark.parametrize("make", [InTurns, Heir, lambda: nn.Sequential(InTurns())], ids=["marked", "heir", "inside"])
def test_calls_of_a_class_that_says_so_always_take_turns(make: Callable[[], nn.Module]) -> None:
    viewed, other = Viewed(make(), IDS), Viewed(Tied(), IDS)
    for each in (viewed, other):
        for _ in range(views.CLEAN_CALLS + 1):
            each.forward(IDS)
    assert other.has_views
    assert not viewed.has_views


@pytest.mark.usefixtures("eagerness")
def test_passes_through_two_modules_with_the_same_parameters_keep_their_values() -> None:
    class Aliasing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight.detach()

    x = torch.ones(2, 3, requires_grad=True)
    inner = Viewed(Aliasing(), x)
    outer = Viewed(nn.Sequential(inner.hosted.value), x, locks=inner.locks)
    for used in (outer, outer, inner, inner):  # the other one may still have its leaf on the memory of before
        values = inner.parameters[0].detach().clone()
        forward = used.forward(x)
        used.step()
        (found,) = torch.autograd.grad(forward.result.sum(), x)
        assert torch.equal(found, torch.ones(2, 3) @ values.t())
    assert inner.step() == [False], "nothing else lies on the memory now"
    for _ in range(2):
        outer.forward(x.detach())
        inner.forward(x.detach())
        assert inner.step() == [False], "both have a leaf on the memory, and nothing uses one"
    result = outer.forward(x).result
    assert inner.step() == [True]
    del result


def test_a_step_keeps_a_frozen_parameter_that_an_open_pass_has_saved() -> None:
    module = nn.Linear(3, 2, bias=False)
    viewed = Viewed(module, X)
    module.weight.requires_grad_(False)
    viewed.locks.set_requires_grad([module.weight], False)
    x = X.clone().requires_grad_()
    result = viewed.forward(x).result  # saves the leaf, which has no accumulating node
    before = module.weight.detach().clone()
    assert viewed.step([torch.ones_like(module.weight)]) == [True], "it moves: an earlier pass has a gradient"
    assert not torch.equal(module.weight, before)
    (found,) = torch.autograd.grad(result.sum(), x)
    assert torch.equal(found, torch.ones(2, 2) @ before)


class Captured(nn.Module):
    """A hook of its graph has captured a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, w = x * self.v, self.w
        assert y.grad_fn is not None
        y.grad_fn.register_prehook(lambda gradients: tuple(each * w.detach() for each in gradients))
        return y * 1 + self.w


@pytest.mark.parametrize("warm", [0, 1, 2, 5])
@pytest.mark.parametrize("anew", [False, True], ids=["same view", "new view"])
def test_a_hook_of_the_graph_finds_the_values_of_its_pass(warm: int, anew: bool) -> None:
    x = torch.tensor([1.0, 2.0])
    viewed = Viewed(Captured())
    for _ in range(warm):
        viewed.forward(x)
    if anew:
        viewed.hosted.value.note = warm
        viewed.forward(x)
        viewed.forward(x)
    forward = viewed.forward(x)
    held = forward.values
    result, leaf = forward.result, forward.leaves[1].tensor
    del forward
    viewed.step()
    with ExitStack() as stack:
        for each in held:
            stack.enter_context(each.found())
        (found,) = torch.autograd.grad(result.sum(), leaf)
    assert torch.equal(found, x)
