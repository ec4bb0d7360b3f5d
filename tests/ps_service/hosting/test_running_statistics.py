"""Tests which layers take turns, and that torch's compiler is not imported to find out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ps_service.hosting.objects import HostedObject
from ps_service.hosting.running_statistics import with_statistics
from ps_service.parameters.locks import ParameterLocks
from ps_service.passes.call_frame import CallFrame


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


def run(hosted: HostedObject, locks: ParameterLocks, training: bool | None, x: torch.Tensor) -> torch.Tensor:
    with CallFrame(locks, training, recorded=True, code="forward") as frame:
        result: torch.Tensor = frame.own(frame.bind(hosted, is_target=True)(x))
    return result.detach()


@pytest.mark.parametrize("make", [Switching, block])
def test_calls_in_any_mode_leave_the_statistics_that_they_leave_locally(make: type[nn.Module]) -> None:
    module, local, locks = make(), make(), ParameterLocks()
    local.load_state_dict(module.state_dict())
    hosted = HostedObject("ps0", module, locks)
    for mode in [True, True, True, False, False, False, None, None, None, True, False, None]:
        local.train(module.training if mode is None else mode)
        x = torch.randn(8, 2)
        assert torch.equal(run(hosted, locks, mode, x), local(x).detach())
        for name, value in local.state_dict().items():
            assert torch.equal(module.state_dict()[name], value)
