"""Tests that the first optimizer of an owner does not wait for imports."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from tests.forking.process import ROOT

PROGRAM = """
    import sys
    import ps_service.cli.serving
    from ps_service.training.optimizers import HostedOptimizer
    from ps_service.training.warm import warm

    assert "torch._dynamo" not in sys.modules, "it is imported anyway by now: warm() is not needed"
    warm()
    before = set(sys.modules)
    import torch
    for cls in (torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad):
        parameter = torch.ones(1, requires_grad=True)
        optimizer = cls([parameter], lr=0.1)
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
        parameter.grad = torch.ones(1)
        optimizer.step()
    print(sorted(set(sys.modules) - before))
"""


def test_a_warm_owner_imports_nothing_for_an_optimizer() -> None:
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert found.stdout == "[]\n"
