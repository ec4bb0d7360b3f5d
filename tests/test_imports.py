"""Tests what our modules import, and what they leave until it is needed: in one interpreter, one after the other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PROGRAM = """
import json, sys

def also(packages):
    return sorted(name for name in sys.modules if name.partition(".")[0] in packages or name in packages)

found = {}
import ps_service.cli
found["inspect"] = also({"torch", "grpc", "aiohttp", "prometheus_client", "ray"})
import trainer_client
from ps_service.engine import Engine
Engine("ps0").close()
found["engine"] = also({"opentelemetry", "ray", "aiohttp", "prometheus_client", "torch._dynamo"})
import ps_service.server
found["server"] = also({"opentelemetry", "ray", "aiohttp", "prometheus_client", "torch._dynamo"})
import ps_service.cli.commands
found["command line"] = also({"ray", "aiohttp", "prometheus_client", "torch._dynamo", "sympy"})

import ps_service.cli.serving, torch
from ps_service.training.optimizers import HostedOptimizer
from ps_service.training.torch_step import warm
found["before warm"] = also({"torch._dynamo"})
warm()
before = set(sys.modules)
for cls in (torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad):
    parameter = torch.ones(1, requires_grad=True)
    optimizer = cls([parameter], lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    parameter.grad = torch.ones(1)
    optimizer.step()
found["optimizers"] = sorted(set(sys.modules) - before)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    """What of interest was imported, by the part of the program after which it was looked at."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("part", ["inspect", "engine", "server", "command line"])
def test_what_is_slow_or_not_configured_is_not_imported(found: dict[str, list[str]], part: str) -> None:
    assert found[part] == []


def test_the_first_optimizer_of_a_warm_owner_imports_nothing(found: dict[str, list[str]]) -> None:
    assert found["before warm"] == [], "it is imported anyway by now: warm() is not needed"
    assert found["optimizers"] == []
