"""Tests that imports only point down, files stay short, and public names have docstrings."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("ps_wire", "ps_service", "trainer_client", "ps_reader")
LONGEST = 400
"""Lines of a file."""


def sources() -> list[Path]:
    """Every file that is not generated."""
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return sorted(path for path in found if not path.stem.endswith(("_pb2", "_pb2_grpc")))


def files_of_tests() -> list[Path]:
    """Every file of tests."""
    return sorted((ROOT / "tests").rglob("*.py"))


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def parsed(path: Path) -> tuple[list[ast.Import | ast.ImportFrom], list[str]]:
    """The imports in a file that happen when the program runs, and what is public there and has no docstring."""
    tree = ast.parse(path.read_text("utf-8"))
    return [node for node in _statements(tree) if isinstance(node, (ast.Import, ast.ImportFrom))], [*_without(tree)]


def test_there_are_files_to_look_at() -> None:
    assert {package for package in PACKAGES if any(named(path).startswith(package) for path in sources())} == {
        *PACKAGES
    }
    assert len(sources()) > 450 and len(files_of_tests()) > 300


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
        "no module imports one that imports it",
    ):
        assert f"{contract} KEPT" in done.stdout
    assert "0 broken" in done.stdout


@cache
def imports() -> dict[str, set[str]]:
    """What each module of the packages imports from its own package when the program runs."""
    modules = {named(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__"): path for path in sources()}
    found: dict[str, set[str]] = {}
    for module, path in modules.items():
        names: set[str] = set()
        for node in parsed(path)[0]:
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif node.module:
                full = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
                names |= {name if name in modules else node.module for name in full.values()}
        package = module.split(".")[0]
        found[module] = {name for name in names & modules.keys() if name.split(".")[0] == package} - {module}
    return found


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """What runs at some time: all but what is there for annotations only."""
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        for inner in getattr(node, field, ()):
            test = inner.test if isinstance(inner, ast.If) else None
            if not (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"):
                yield inner
                yield from _statements(inner)


@pytest.mark.parametrize(("package", "most"), [("ps_wire", 7), ("ps_service", 14), ("trainer_client", 9)])
def test_a_chain_of_imports_is_short(package: str, most: int) -> None:
    graph = imports()

    @cache
    def longest(module: str) -> tuple[str, ...]:
        return (module, *max(map(longest, sorted(graph[module])), key=len, default=()))

    chain = max((longest(module) for module in graph if module.split(".")[0] == package), key=len)
    assert len(chain) <= most, " > ".join(chain)


def test_a_file_has_at_most_400_lines() -> None:
    lengths = {named(path): len(path.read_text("utf-8").splitlines()) for path in (*sources(), *files_of_tests())}
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def test_everything_public_has_a_docstring() -> None:
    without = {named(path): missing for path in sources() if (missing := parsed(path)[1])}
    assert without == {}


def _without(tree: ast.Module) -> Iterator[str]:
    """What in a file is public and has no docstring."""
    if tree.body and not ast.get_docstring(tree):
        yield "the module"
    yield from (definition.name for definition in _public(tree) if not ast.get_docstring(definition))


def _public(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Classes and functions of a module whose names do not begin with an underscore, but not their overloads."""
    for node in tree.body:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if not node.name.startswith("_") and "overload" not in map(ast.unparse, node.decorator_list):
            yield node
