"""Tests that the lists, names and links in pages are right."""

from __future__ import annotations

import builtins
import hashlib
import re
import runpy
import tomllib
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch
from typer.main import get_command

import trainer_client as tc
from examples.digits.cluster.settings import PREFIX
from examples.digits.cluster.settings import Settings as TrainerSettings
from ps_service.cli.commands import app
from ps_service.config import OwnerConfig
from ps_service.rpc import unary_metadata
from ps_service.rpc.unary_metadata import STATUS
from ps_wire import errors
from ps_wire.v1 import owner_pb2
from ps_wire.v1.errors_pb2 import ErrorCode
from tests.cases import case

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path
    for pattern in (
        "*.md",
        "docs/*.md",
        "docs/guide/*.md",
        "deploy/*.md",
        "deploy/*/*.md",
        "benchmarks/*.md",
        "examples/*.md",
        "examples/*/*.md",
    )
    for path in ROOT.glob(pattern)
)
GUIDE = ROOT / "docs" / "guide"
SITE = ROOT / "docs" / "site"
WRITTEN = [path for path in PAGES if path.name != "CHANGELOG.md"]
"""Pages that tell what is, and not what was."""

BASES = [
    *(ROOT / name for name in (".", "deploy", "ps_reader", "ps_service", "ps_wire", "trainer_client")),
    Path(torch.__file__).parent / "testing" / "_internal" / "distributed",  # torch's own tests
]
"""Where a path that stands in a page may begin."""


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# Pages that are written by programs

GENERATED = ("modules", "options", "status")


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_page_is_the_present_one(name: str) -> None:
    page: Callable[[], str] = runpy.run_path(str(ROOT / "docs" / f"{name}.py"))["page"]
    assert (ROOT / "docs" / f"{name}.md").read_text("utf-8") == page(), "run `make pages`"


# Lists in pages that are written by hand


def test_every_error_has_a_row_in_the_guide() -> None:
    rows = {}
    for line in re.findall(r"^\| `\w+Error` \|.*$", (GUIDE / "errors.md").read_text("utf-8"), re.MULTILINE):
        name, also, code, status, _ = (cell.strip() for cell in line.strip("|").split("|"))
        rows[name.strip("`")] = (also, code.strip("`"), status.strip("`"))
    assert rows.pop("ClosedError") == ("", "", "")
    assert rows.keys() == {cls.__name__ for cls in errors.BY_CODE.values()}
    for number, cls in errors.BY_CODE.items():
        also, code, status = rows[cls.__name__]
        assert code == ErrorCode.Name(ErrorCode.ValueType(number)).removeprefix("ERROR_").lower()
        assert status == STATUS[number].name
        if cls is not errors.RemoteError:
            builtin = next((base for base in cls.__bases__ if not issubclass(base, errors.PsError)), None)
            assert also == (f"`{builtin.__name__}`" if builtin else "")


def test_every_unary_method_is_in_the_guide() -> None:
    section = (GUIDE / "other-languages.md").read_text("utf-8").partition("## Methods")[2].partition("\n## ")[0]
    methods = owner_pb2.DESCRIPTOR.services_by_name["Owner"].methods
    assert re.findall(r"`([A-Z]\w+)`", section) == [each.name for each in methods if each.name != "Session"]


def test_every_key_of_unary_metadata_is_in_the_guide() -> None:
    keys = {value for name, value in vars(unary_metadata).items() if name.endswith("_KEY")}
    page = (GUIDE / "other-languages.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(ps-[\w-]+)` \|", page, re.MULTILINE)) == keys


def test_the_index_of_the_guide_has_every_page() -> None:
    index = (GUIDE / "README.md").read_text("utf-8")
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", index)) == {each.name for each in GUIDE.glob("*.md")} - {"README.md"}


def test_the_site_has_every_page_in_its_navigation() -> None:
    listed = re.findall(r"^(?:.+<)?([\w/-]+)>?$", (SITE / "navigation.md").read_text("utf-8"), re.MULTILINE)
    pages = [path.with_suffix("").relative_to(ROOT).as_posix() for path in PAGES]
    assert sorted(set(pages) - {"README", "docs/tutorials/README", *listed}) == []
    assert [name for name in listed if not any((ROOT / f"{name}.{end}").exists() for end in ("md", "rst"))] == []


def test_the_site_has_a_picture_of_every_diagram() -> None:
    pictures = {path.read_text("utf-8").partition("\n")[0] for path in SITE.glob("diagrams/*.svg")}
    for page in PAGES:
        for source in re.findall(r"^```mermaid\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            drawn = f"<!-- drawn from {hashlib.sha256(source.strip().encode()).hexdigest()} -->"
            assert drawn in pictures, f"{named(page)}: run `python docs/site/draw.py`"


def test_lines_of_the_guide_are_short() -> None:
    """All but rows of tables, which cannot be broken."""
    for page in GUIDE.glob("*.md"):
        lines = page.read_text("utf-8").splitlines()
        assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == [], named(page)


def test_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    """Each figure in bold is in the row that its command gives: `make bench ROWS=`, or a policy."""
    section = (ROOT / "README.md").read_text("utf-8").partition("## What it is good for")[2].partition("\n## ")[0]
    lines = (ROOT / "benchmarks" / "README.md").read_text("utf-8").splitlines()
    measured = 0
    for each in re.split(r"\n(?:- |\n)", section):
        rows = re.findall(r"ROWS=(\w+)|`((?:Sync|Quorum)\([^`]*\))`", each)
        found = "\n".join(
            line for line in lines for row in rows if re.search(rf"\b{row[0]},? |`{re.escape(row[1])}`", line)
        )
        for figure in re.findall(r"\*\*([\d.]+)\b", each):
            measured += 1
            assert re.search(rf"\b{re.escape(figure)}\b", found), f"{figure} of {rows}"
    assert measured >= 8


def test_pages_of_the_guide_are_short() -> None:
    lengths = {named(page): len(page.read_text("utf-8").splitlines()) for page in GUIDE.glob("*.md")}
    assert {page: length for page, length in lengths.items() if length > 200} == {}


# What pages name


@pytest.mark.parametrize(
    "module", [tc, tc.codecs, tc.errors, tc.policies, tc.tables], ids=lambda module: module.__name__
)
def test_every_public_name_is_on_a_page(module: ModuleType) -> None:
    pages = [path for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")) if path.stem not in GENERATED]
    code = "\n".join(
        each for path in pages for each in re.findall(r"^```.*?^```|`[^`\n]+`", path.read_text("utf-8"), re.M | re.S)
    )
    assert [name for name in module.__all__ if not re.search(rf"\b{name}\b", code)] == []


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text("utf-8")):
            file, _, anchor = target.partition("#")
            path = (page.parent / file).resolve() if file else page
            with case(named(page), target):
                assert path.exists()
                if anchor and path.suffix == ".md":
                    assert anchor in _anchors(path)


def test_files_that_are_named_are_there() -> None:
    for page in WRITTEN:
        text = re.sub(r"new `[^`]+`", "", page.read_text("utf-8"))
        for name in re.findall(r"`(?!out/)((?:[\w.]+/)+\w[\w.]*\.(?:py|proto|md|toml|json|yaml))`", text):
            assert any((base / name).exists() for base in (*BASES, page.parent)), f"{name} in {named(page)}"
        for name in re.findall(r"`((?:ps_service|ps_wire|trainer_client|tests|docs|deploy|proto)(?:/\w+)+)`", text):
            assert (ROOT / name).exists(), f"{name} in {named(page)}"


def test_commands_that_are_shown_exist() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for page in WRITTEN:
        text = page.read_text("utf-8")
        with case(named(page)):
            assert {name for name in re.findall(r"(?:`|^\$ )make ([a-z-]+)", text, re.MULTILINE)} <= set(targets)
            for module in re.findall(r"python -m ((?:examples|benchmarks|ps_service|tests)[\w.]*)", text):
                assert find_spec(module.rstrip(".")), module
            for name, part, arguments in re.findall(r"ps-service ([a-z]+)(?: ([a-z]+)\b)?([^\n`#]*)", text):
                assert name in commands, name
                command = getattr(commands[name], "commands", {}).get(part, commands[name])
                known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
                own, _, _ = arguments.partition(" -- ")
                assert set(re.findall(r"--[a-z-]+", own)) <= known | {"--help"}, arguments


def test_extras_that_are_shown_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    shown = [re.findall(r"(?:'\.|torch-parameter-server)\[([\w,]+)\]'", page.read_text("utf-8")) for page in WRITTEN]
    names = {name for found in shown for each in found for name in each.split(",")}
    assert {"server", "compression", "tracing"} <= names <= set(extras)


def test_variables_and_errors_that_are_named_exist() -> None:
    settings = {f"PS_{(field.alias or name).upper()}" for name, field in OwnerConfig.model_fields.items()}
    deployed = {
        name
        for path in (ROOT / "deploy").rglob("*")
        if path.is_file()
        for name in re.findall(r"PS_[A-Z_]+", path.read_text("utf-8"))
        if path.suffix != ".md"
    }
    trainers = {f"{PREFIX}{field.name.upper()}" for field in fields(TrainerSettings)}
    reached = {f"PS_TLS_{each}" for each in ("CA", "CERT", "KEY", "SERVER_NAME")} | {"PS_TOKEN", "PS_NAMESPACE"}
    commands = get_command(app).commands.values()  # type: ignore[attr-defined]
    arguments = {each.envvar for command in commands for each in command.params}
    variables = settings | deployed | trainers | arguments | reached
    ours = {name for name in vars(errors) if name.endswith("Error")} | {"CheckpointError", *vars(builtins)}
    for page in WRITTEN:
        text = page.read_text("utf-8")
        with case(named(page)):
            assert set(re.findall(r"`(PS_[A-Z_]+)`", text)) <= variables
            assert set(re.findall(r"`(?:tc\.)?(?:errors\.)?([A-Z]\w+Error)`", text)) <= ours


MOST_FILES = 5
"""Files that have to be written or changed for any of the additions that the architecture was made for."""


def additions() -> dict[str, list[tuple[str, str]]]:
    """For each row group of the table "To add": its files, with `new` before those to write, and what to do there."""
    section = (ROOT / "docs" / "architecture.md").read_text("utf-8").partition("## To add")[2].partition("\n## ")[0]
    found: dict[str, list[tuple[str, str]]] = {}
    for line in [line for line in section.splitlines() if line.startswith("| ")][1:]:
        addition, file, how = (cell.strip() for cell in line.strip("|").split("|"))
        if addition:
            found[addition] = []
        found[[*found][-1]].append((file, how))
    return found


def test_there_are_additions() -> None:
    assert len(additions()) >= 4


@pytest.mark.parametrize("addition", additions())
def test_an_addition_needs_few_files_which_are_there_or_new(addition: str) -> None:
    rows = additions()[addition]
    assert len({file for file, _ in rows}) == len(rows) <= MOST_FILES
    for file, how in rows:
        is_new, name = re.fullmatch(r"(new )?`([^`]+)`", file).groups()  # type: ignore[union-attr]
        assert (ROOT / name).exists() is not bool(is_new), file
        if not is_new:
            text = (ROOT / name).read_text("utf-8")
            assert [each for each in re.findall(r"`(_\w+)`", how) if f"def {each}(" not in text] == [], file


@cache
def _anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings of a page."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    }


# Tests that pages name


def test_promises_name_tests_that_are_there() -> None:
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", (ROOT / "docs" / "recovery.md").read_text("utf-8"))
    assert len(named) > 20
    for file, test in named:
        texts = [path.read_text("utf-8") for path in (ROOT / "tests").rglob(file)]
        assert any(re.search(rf"^(async )?def {test}\(", each, re.MULTILINE) for each in texts), f"{file}::{test}"
