"""Tests which layers take turns, and that torch's compiler is not imported to find out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ps_service.hosting.bound_copy_pool import BoundCopies
from ps_service.hosting.running_statistics import with_statistics
from tests.ps_service.hosting.host import bound


def block() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False))


def compiled_in_place() -> nn.Module:
    module = block()
    module[0].compile(backend="eager")
    return module


def test_layers_with_statistics_are_found() -> None:
    module = block()
    assert with_statistics(nn.Sequential(module)) == [module[1]]


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(lambda: torch.compile(block(), backend="eager"), id="whole"),
        pytest.param(lambda: nn.Sequential(block(), torch.compile(nn.Linear(2, 2), backend="eager")), id="a part"),
        pytest.param(compiled_in_place, id="in place"),
    ],
)
def test_compiled_modules_are_not_changed(module: object) -> None:
    assert callable(module)
    assert with_statistics(module()) == []


class Switching(nn.Module):
    """Puts its layer into training mode in a call that was made in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.norm.train()
        found: torch.Tensor = self.norm(x)
        self.norm.eval()
        return found


def test_statistics_that_a_call_in_evaluation_mode_has_updated_are_kept() -> None:
    module, local = Switching(), Switching()
    pool = BoundCopies(module)
    for _ in range(3):
        x = torch.randn(8, 2)
        with bound(pool, module, training=False) as copy:
            assert torch.equal(copy(x), local.eval()(x))
        assert torch.equal(module.norm.running_mean, local.norm.running_mean)
        assert torch.equal(module.norm.running_var, local.norm.running_var)
        assert torch.equal(module.norm.num_batches_tracked, local.norm.num_batches_tracked)


def test_a_layer_in_the_mode_of_its_module_updates_its_statistics_as_locally() -> None:
    module, local = block(), block()
    local.load_state_dict(module.state_dict())
    pool = BoundCopies(module)
    for mode in (True, False, True):
        module.train(mode), local.train(mode)
        x = torch.randn(8, 2)
        with bound(pool, module, training=None) as copy:
            assert torch.equal(copy(x), local(x))
        for name, value in local.state_dict().items():
            assert torch.equal(module.state_dict()[name], value)
