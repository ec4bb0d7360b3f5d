"""Tests what our modules import, and what they leave until it is needed: in one interpreter, one after the other."""

from __future__ import annotations

import json
import os
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
found["inspect"] = also({"torch", "numpy", "grpc", "aiohttp", "prometheus_client", "ray"})

import contextlib, io
from pathlib import Path
from typer.main import get_command
from ps_service.cli import commands
tree = get_command(commands.app)

def run(*words):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        try:
            tree.main(list(words), "ps-service")
        except SystemExit as error:
            code = error.code
    assert (out.getvalue() or words[0] == "token") and code in (0, 1, 2), (words, code)
    return out.getvalue()

run("--help"), run("--version"), run("completion")
for name, command in tree.commands.items():
    run(name, "--help")
    for part in getattr(command, "commands", ()):
        run(name, part, "--help")
nobody = "127.0.0.1:1"
for name in ("status", "sessions", "checkpoint", "drain"):
    assert "no owner answers" in run(name, nobody), name
assert "no owner answers" in run("evict", nobody, "--older-than", "1")
Path("tokens").touch(0o600)
run("token", "list", "--file", "tokens")
assert "load_state" in run("access")
assert "no identity" in run("access", "explain", "alice", "call", "--file", "tokens")
run("inspect", ".")
assert "there is no file" in run("run", "--owners", "2", "missing.py")
run("checkpoint-key", "keys")
run("sign", ".", "--checkpoint-key-file", "keys")
found["help"] = also({"torch", "numpy", "ray", "aiohttp", "prometheus_client"})

import os
os.environ |= {"_PS_SERVICE_COMPLETE": "complete_bash", "COMP_WORDS": "ps-service st", "COMP_CWORD": "1"}
assert "status" in run("")
del os.environ["_PS_SERVICE_COMPLETE"]
import trainer_client
found["completion"] = also({"torch", "numpy", "ray", "aiohttp", "prometheus_client"})

trainer_client.connect
from ps_service.engine import Engine
Engine("ps0").close()
found["engine"] = also({"opentelemetry", "ray", "aiohttp", "prometheus_client", "torch._dynamo"})
import ps_service.server
found["server"] = also({"opentelemetry", "ray", "aiohttp", "prometheus_client", "torch._dynamo"})
import ps_service.cli.serving
found["command line"] = also({"ray", "aiohttp", "prometheus_client", "torch._dynamo", "sympy"})

import torch
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
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What of interest was imported, by the part of the program after which it was looked at."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    folder = tmp_path_factory.mktemp("folder")
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("part", ["inspect", "help", "completion", "engine", "server", "command line"])
def test_what_is_slow_or_not_configured_is_not_imported(found: dict[str, list[str]], part: str) -> None:
    assert found[part] == []


def test_the_first_optimizer_of_a_warm_owner_imports_nothing(found: dict[str, list[str]]) -> None:
    assert found["before warm"] == [], "it is imported anyway by now: warm() is not needed"
    assert found["optimizers"] == []
