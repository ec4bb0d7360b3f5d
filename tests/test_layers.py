"""Layers: imports point down only, files stay short, and everything public says what it is."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("ps_wire", "ps_service", "trainer_client")
LONGEST = 400
"""Lines of a file."""


def sources() -> list[Path]:
    """Every file that somebody has written."""
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return sorted(path for path in found if not path.stem.endswith(("_pb2", "_pb2_grpc")))


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_there_are_files_to_look_at() -> None:
    assert {package for package in PACKAGES if any(named(path).startswith(package) for path in sources())} == {
        *PACKAGES
    }
    assert len(sources()) > 50


def test_the_contracts_of_the_layers_are_kept() -> None:
    command = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([command, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for contract in (
        "ps_wire knows neither side",
        "the layers of ps_wire",
        "the layers of ps_service",
        "the layers of trainer_client",
        "server and client know nothing of each other",
        "only transport speaks gRPC",
        "only monitoring speaks HTTP and Prometheus",
    ):
        assert f"{contract} KEPT" in done.stdout
    assert "0 broken" in done.stdout


def test_what_starts_slowly_is_not_imported_before_it_is_needed() -> None:
    slow = {"torch._dynamo", "sympy", "aiohttp", "prometheus_client"}
    program = f"import sys, ps_service.cli; print(sorted(sys.modules.keys() & {slow}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("path", sources(), ids=named)
def test_a_file_has_at_most_400_lines(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= LONGEST


@pytest.mark.parametrize("path", sources(), ids=named)
def test_everything_public_has_a_docstring(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    assert ast.get_docstring(tree) or not tree.body, "the module"
    without = [definition.name for definition in _public(tree) if not ast.get_docstring(definition)]
    assert without == []


def _public(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Classes and functions of a module whose names do not begin with an underscore, but not their overloads."""
    for node in tree.body:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if not node.name.startswith("_") and "overload" not in map(ast.unparse, node.decorator_list):
            yield node


@pytest.mark.parametrize("path", sources(), ids=named)
def test_nothing_is_pickled_or_evaluated(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    imported = {
        alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    imported |= {
        node.module.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
    }
    assert not imported & {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & {"eval", "exec", "compile", "__import__"}
