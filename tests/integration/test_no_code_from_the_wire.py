"""Tests that no code comes from the wire: messages are not unpickled or evaluated, and import no names."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.forking.process import Forking

PACKAGES = (ROOT / "ps_wire", ROOT / "ps_service", ROOT / "trainer_client", ROOT / "ps_reader")

FORBIDDEN_NAMES = {"eval", "exec", "compile", "__import__", "execfile"}
FORBIDDEN_MODULES = {
    *("pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "copyreg", "runpy", "code", "codeop", "imp"),
    *("importlib", "pkgutil", "yaml", "subprocess", "joblib"),
}
FORBIDDEN_ATTRIBUTES = {("torch", "load"), ("torch", "save"), ("torch", "package"), ("torch", "jit"), ("os", "system")}
_WORDS = "|".join({*FORBIDDEN_NAMES, *FORBIDDEN_MODULES, *(name for _, name in FORBIDDEN_ATTRIBUTES)})
WORDS = re.compile(rf"\b(?:{_WORDS})\b|\bsys\s*\.\s*modules\b")
"""One of them is in whatever `dangerous` finds."""
ALLOWED = {
    # The release of the package itself.
    ("ps_wire/release.py", "importlib.metadata"),
    # That of torch.
    ("ps_service/cli/commands.py", "importlib.metadata"),
    # The modules of --import, or of allow= for a member of a group.
    ("trainer_client/rpc/own_owner.py", "importlib"),
    ("ps_service/hosting/allowlist.py", "importlib"),
    # Packages that may be missing, each by one fixed name.
    ("ps_wire/compression/zstd.py", "importlib"),
    ("ps_wire/tracing/__init__.py", "importlib"),
    ("ps_service/tables/compiled.py", "importlib.util"),
    ("ps_service/cli/certs.py", "importlib"),
    ("ps_service/cli/ray_commands.py", "importlib"),
    ("trainer_client/transport/ray_owners.py", "importlib"),
    # The owner that a supervisor on Ray watches, with the flags that whoever has started it gave.
    ("ps_service/ray/owner_process.py", "subprocess"),
    # The owners and trainers of `ps-service run`, with the program that it was given.
    ("ps_service/launch/process.py", "subprocess"),
    # A process of Python that compiles the loops of tables. It gets the search path of this one, and nothing else.
    ("ps_service/tables/preparing.py", "subprocess"),
    ("ps_wire/tracing/__init__.py", "sys.modules"),
    # Exporters of OpenTelemetry that a variable of the environment names.
    ("ps_wire/tracing/configuration.py", "importlib.metadata"),
    # The class of a replica, by the name that the program itself has given to the client.
    ("trainer_client/replicas/classes.py", "importlib"),
    # Whether gRPC was imported before: looks for that one name, and takes nothing from there.
    ("ps_wire/__init__.py", "sys.modules"),
    # Whether this is a notebook, in the same way; and what the program was started as, for its name in the status.
    ("trainer_client/reporting/progress.py", "sys.modules"),
    ("trainer_client/session/programs.py", "sys.modules"),
    # The files of the modules that --import names.
    ("ps_service/cli/reloading.py", "sys.modules"),
    # Names of the package itself, each from one fixed module, when they are used first; and its commands.
    ("ps_service/__init__.py", "importlib"),
    ("ps_service/ray/__init__.py", "importlib"),
    ("trainer_client/__init__.py", "importlib"),
    ("ps_service/cli/entry.py", "importlib"),
    # The files of the page, which are in the package.
    ("ps_service/monitoring/page.py", "importlib.resources"),
}


@pytest.fixture(scope="module")
def audited(forking: Forking) -> dict[str, Any]:
    """What the audited job told; it is a process of its own, because an audit hook stays until the end."""
    with forking.start("tests.integration.audited_job") as job:
        output = job.communicate(100)
        assert job.wait() == 0
    result: dict[str, Any] = json.loads(output)
    return result


def test_nothing_is_ever_unpickled(audited: dict[str, Any]) -> None:
    assert audited["find_class"] == []


def test_no_name_from_the_wire_is_imported(audited: dict[str, Any]) -> None:
    assert audited["imported"] == []
    assert audited["first round"] == []


def test_once_warm_an_owner_imports_compiles_and_executes_nothing_at_all(audited: dict[str, Any]) -> None:
    assert audited["second round"] == []


def test_every_hostile_request_was_refused(audited: dict[str, Any]) -> None:
    answers = audited["answers"]
    assert "accepted" not in answers and "InternalError" not in answers
    assert set(answers) >= {"NotAllowedError", "UnknownNameError", "InvalidArgumentError", "StaleHandleError"}
    assert sum(answers.values()) > 300


def test_the_hook_would_have_seen_it(audited: dict[str, Any]) -> None:
    expected = ["pickle.find_class", "exec", "compile", "import", "exec"]
    assert all(event in seen for event, seen in zip(expected, audited["controls"], strict=True))


def modules() -> list[Path]:
    return sorted(path for package in PACKAGES for path in package.rglob("*.py"))


def test_no_module_can_run_code_that_it_was_sent() -> None:
    places = {path.relative_to(ROOT).as_posix(): path.read_text() for path in modules()}
    # Most have none of the words, and need not be parsed.
    suspect = {place: text for place, text in places.items() if WORDS.search(text)}
    found = {(place, each) for place, text in suspect.items() for each in dangerous(ast.parse(text))}
    assert len(places) > 450 and found - ALLOWED == set()


def dangerous(tree: ast.AST) -> Iterator[str]:
    """What in a module could run code, by its name."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name.split(".")[0] in FORBIDDEN_MODULES)
            case ast.ImportFrom(module=str(module), level=0) if module.split(".")[0] in FORBIDDEN_MODULES:
                yield module
            case ast.ImportFrom(module="torch", names=names):
                yield from (f"torch.{alias.name}" for alias in names if ("torch", alias.name) in FORBIDDEN_ATTRIBUTES)
            case ast.Name(id=name) if name in FORBIDDEN_NAMES:
                yield name
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if (owner, name) in FORBIDDEN_ATTRIBUTES:
                yield f"{owner}.{name}"
            case ast.Attribute(attr="modules", value=ast.Name(id="sys")):
                yield "sys.modules"


@pytest.mark.parametrize(
    "source",
    [
        *(
            "import pickle",
            "from pickle import loads",
            "eval('1')",
            "import importlib.util",
            "import torch\ntorch.load(x)",
        ),
        *("from torch import load", "getattr(sys.modules[a], b)", "__import__(name)", "import os\nos.system(x)"),
    ],
)
def test_the_search_finds_forbidden_calls(source: str) -> None:
    assert WORDS.search(source) and list(dangerous(ast.parse(source)))
