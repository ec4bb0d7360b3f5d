"""What calls change on a view is the module's, or is refused; modules that are not ordinary have no view."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ps_service.hosting.ordinary import is_ordinary
from ps_service.passes.view_binding import ViewBinding
from ps_wire.errors import ContextLostError, InvalidArgumentError
from tests.ps_service.passes.viewed import Viewed, expected
from tests.ps_service.passes.viewed_models import Normed, Switching, meanwhile, pauses
from tests.ps_service.threads import Worker

X = torch.arange(6.0).reshape(2, 3) / 6
IDS = torch.tensor([1, 3, 1])


def switched(what: str) -> tuple[Viewed, Switching]:
    """A module whose first calls change nothing, and whose later ones do."""
    module = Switching()
    viewed = Viewed(module, X)
    viewed.forward(X)
    assert viewed.has_views
    module.what[0] = what
    return viewed, module


def test_an_attribute_that_is_set_late_is_that_of_the_module() -> None:
    viewed, module = switched("count")
    for count in (1, 2, 3):
        viewed.forward(X)
        assert module.calls == count
    viewed, module = switched("delete")
    viewed.forward(X)
    assert not hasattr(module, "calls")


@pytest.mark.parametrize("what", ["clamp", "data", "move"])
def test_a_late_write_to_a_parameter_reaches_later_passes_and_never_open_ones(what: str) -> None:
    viewed, module = switched(what)
    module.what[0] = "nothing"
    x = X.clone().requires_grad_()
    first, weight = viewed.forward(x), module.layer.weight.detach().clone()
    module.what[0] = what
    viewed.forward(X)
    assert torch.equal(module.layer.weight, weight.clamp(max=0) if what != "move" else torch.zeros(3, 3))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(first.result.sum(), x)
    viewed.forward(X).backward(torch.ones(2, 3))


@pytest.mark.parametrize("what", ["clamp", "data"])
def test_a_late_write_never_reaches_open_passes_of_a_module_that_has_the_parameter_too(what: str) -> None:
    viewed, module = switched("nothing")
    other = Viewed(nn.Sequential(module.layer), X, locks=viewed.locks)
    x = X.clone().requires_grad_()
    first = other.forward(x)
    assert other.has_views
    module.what[0] = what
    viewed.forward(X)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(first.result.sum(), x)
    assert torch.equal(other.forward(X).result, module.layer(X))


class Reading(nn.Module):
    """Reads a layer that another module has, too."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x)
        meanwhile()
        return found


def test_a_call_that_reads_what_another_module_writes_to_has_written_nothing() -> None:
    viewed, module = switched("nothing")
    reading = Viewed(Reading(module.layer), X, locks=viewed.locks)
    reading.forward(X)
    module.what[0] = "clamp"
    pauses.during = lambda: Worker(lambda: viewed.forward(X)).result()
    reading.forward(X)
    assert viewed.hosted.writers == {"forward"} and reading.hosted.writers == set()
    assert reading.hosted.parameter_states[0].writes == 1


@pytest.mark.parametrize("what", ["clamp", "data", "move"])
def test_a_late_write_during_a_step_raises(what: str) -> None:
    viewed, module = switched(what)
    pauses.during = viewed.step
    with pytest.raises(ContextLostError, match="while a step changed it, so that what it has written may be lost"):
        viewed.forward(X)
    viewed.forward(X)
    assert torch.equal(module.layer.weight, module.layer.weight.clamp(max=0))


def test_a_call_that_begins_when_another_ends_finds_its_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    viewed, module = switched("nothing")
    # It has saved the weight, so the step moves that and the next call gets other leaves.
    open_pass = viewed.forward(X.clone().requires_grad_())
    module.what[0] = "count"
    give_back, others = ViewBinding.give_back, [True]

    def another(self: ViewBinding) -> bool:
        is_unsettled = give_back(self)
        while others:
            others.clear()
            viewed.step()
            module.what[0] = "nothing"
            viewed.forward(X)
        return is_unsettled

    monkeypatch.setattr(ViewBinding, "give_back", another)
    viewed.forward(X)
    assert (module.calls, others, open_pass.steps) == (1, [], 0)


def test_a_view_never_gets_the_memory_that_a_call_on_the_module_itself_has() -> None:
    viewed, module = switched("nothing")
    open_pass = viewed.forward(X.clone().requires_grad_())
    assert any(viewed.step())  # so that the next call gets other leaves
    pauses.during = lambda: Worker(lambda: viewed.forward(X)).result()
    viewed.forward(X, code="again")
    del open_pass
    viewed.step()
    assert torch.equal(viewed.forward(X).result, module.layer(X))


def test_what_a_call_gives_a_parameter_is_found_by_the_calls_after_it() -> None:
    class Marking(nn.Linear):
        def watch(self, x: torch.Tensor) -> torch.Tensor:
            self.weight.register_hook(seen.append)
            return x

        def mark(self, x: torch.Tensor) -> torch.Tensor:
            self.weight.marked = True  # type: ignore[attr-defined]
            return x

        def is_marked(self, x: torch.Tensor) -> torch.Tensor:
            return x + hasattr(self.weight, "marked")

    seen: list[torch.Tensor] = []
    viewed = Viewed(Marking(3, 3), X)
    viewed.forward(X)
    viewed.forward(X, code="watch")
    viewed.forward(X).backward(torch.ones(2, 3))
    assert len(seen) == 1
    viewed = Viewed(Marking(3, 3))
    for _ in range(3):
        assert torch.equal(viewed.forward(X, code="is_marked").result, X)
    assert viewed.has_views
    viewed.forward(X, code="mark")
    assert torch.equal(viewed.forward(X, code="is_marked").result, X + 1)


def test_a_parameter_that_a_call_makes_of_one_is_its_own() -> None:
    viewed, module = switched("parameter")
    forward = viewed.forward(X)
    assert torch.equal(forward.result, X @ module.layer.weight)
    assert all(not each.any() for each in forward.backward(torch.ones(2, 3)))


def test_a_late_freeze_is_that_of_the_module() -> None:
    viewed, module = switched("freeze")
    viewed.forward(X)
    assert not module.layer.weight.requires_grad
    module.what[0] = "nothing"
    assert not viewed.forward(X).leaves[0].tensor.requires_grad


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("hook", "registered a hook"),
        ("backward", "called backward"),
        ("restructure", "added, replaced or deleted"),
        ("alias", "in the memory of a parameter"),
        ("shape", "another shape or dtype"),
    ],
)
def test_what_is_refused_is_refused_late_too_and_changes_nothing(what: str, message: str) -> None:
    viewed, module = switched(what)
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(InvalidArgumentError, match=message):
        viewed.forward(X)
    module.what[0] = "nothing"
    forward = viewed.forward(X)
    reference = expected(nn.Linear(3, 3), viewed.history[0], X, torch.ones(2, 3))
    assert all(map(torch.equal, forward.backward(torch.ones(2, 3)), reference))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module.state_dict().keys() == before.keys() and module.layer.weight.grad is None


def test_a_tensor_with_its_history_that_is_kept_late_has_its_history_ended() -> None:
    viewed, module = switched("history")
    viewed.forward(X)
    assert type(module.seen.grad_fn).__name__ == "_EndedBackward"


def test_what_others_set_is_seen() -> None:
    viewed, module = switched("nothing")
    module.layer.bias.requires_grad_(False)
    viewed.locks.set_requires_grad([module.layer.weight], requires_grad=False)
    assert not any(leaf.tensor.requires_grad for leaf in viewed.forward(X).leaves)
    module.layer.forward = lambda x: x + 1  # type: ignore[method-assign]
    assert torch.equal(viewed.forward(X).result, X + 1)


def test_hooks_and_other_classes_of_parameters_are_not_ordinary() -> None:
    module = nn.Linear(3, 3)
    assert is_ordinary(module)
    module.register_forward_hook(lambda *_: None)
    assert not is_ordinary(module)
    module = nn.Linear(3, 3)
    module.weight.register_hook(lambda gradient: gradient)
    assert not is_ordinary(module)
    module = nn.Linear(3, 3)
    module.register_parameter("own", type("Own", (nn.Parameter,), {})(torch.ones(1)))
    assert not is_ordinary(module)


def test_references_beside_the_dicts_make_a_module_not_ordinary() -> None:
    module = nn.Sequential(nn.Linear(3, 3))
    assert is_ordinary(module)
    module.same = [module[0].weight]  # type: ignore[assignment]
    assert not is_ordinary(module)
    viewed = Viewed(module, X)
    viewed.forward(X)
    assert not viewed.has_views


def test_a_reference_that_is_set_after_it_was_made_makes_it_not_ordinary() -> None:
    viewed, module = switched("nothing")
    module.what.append(module.layer.weight)  # type: ignore[arg-type]
    module.calls = 1
    forward = viewed.forward(X)
    assert not forward.leaves[0].is_shared


def test_an_open_pass_in_evaluation_mode_keeps_the_statistics_that_it_has_seen() -> None:
    viewed = Viewed(Normed(), IDS, training=False)
    training = Viewed(viewed.hosted.value, IDS)
    forward = viewed.forward(IDS)
    assert viewed.has_views
    reference = copy.deepcopy(viewed.hosted.value).eval()
    training.forward(IDS)
    assert not torch.equal(viewed.hosted.value.norm.running_mean, reference.norm.running_mean)
    gradient = torch.ones_like(forward.result)
    expected = torch.autograd.grad(reference(IDS), list(reference.parameters()), gradient)
    assert all(map(torch.equal, forward.backward(gradient), expected))
