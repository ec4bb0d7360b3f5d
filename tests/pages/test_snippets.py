"""Tests that the snippets of pages run, in the order in which they are printed, with fresh owners for each page."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

import pytest

from tests.forking.process import AsyncForked
from tests.pages.conftest import Start
from tests.pages.snippets import ROOT, Page, Snippet, with_addresses

APART = {"README.md", "other-languages.md", "production.md", "protect.md", "ray.md", "run.md"}
"""Pages of the guide that have no snippets, or only such as need a cluster, or have a test of their own."""

GUIDE = sorted(f"docs/guide/{path.name}" for path in (ROOT / "docs" / "guide").glob("*.md") if path.name not in APART)
PAGES = [*GUIDE, "docs/recovery.md", "docs/coming-from-torch-rpc.md", "docs/compression.md"]
TESTS = ("conftest", "test_")
BY_HAND = "ps-service serve --name ps0"


async def serving(start: Start, *arguments: str) -> str:
    """The address of an owner that is started."""
    owner = await start("ps_service", "serve", *arguments, errors=False)
    line = (await owner.stdout.readline()).decode()
    assert " is serving on " in line, line
    return line.split()[-1]


async def end_of(process: AsyncForked) -> str:
    """What a process prints, which must succeed."""
    out, errors = await process.communicate()
    assert process.returncode == 0, out.decode() + errors.decode()
    return out.decode()


async def owners_of(page: Page, start: Start, folder: Path) -> list[str]:
    """The addresses of two owners of one group, which import the modules of the page."""
    page.write_files(folder, [])
    programs = {name for each in page.snippets() for name, *_ in each.programs}
    modules = sorted(each for each in page.files - programs if not each.startswith(TESTS))
    offered = [flag for name in modules for flag in ("--import", name)]
    listen = ("--listen", "127.0.0.1:0", *offered)
    first = await serving(start, "--name", "ps0", "--directory", "self", "--data-dir", "kept/ps0", *listen)
    second = await serving(start, "--name", "ps1", "--directory", first, "--data-dir", "kept/ps1", *listen)
    return [first, second]


async def run_all(page: Page, addresses: list[str], start: Start, folder: Path) -> None:
    """Runs the snippets of a page in their order, and then the programs that it shows, all at once."""
    page.write_files(folder, addresses)
    told = await end_of(await start("tests.pages.runner", page.name, *addresses))
    assert told.count("ran the snippet in line") == sum(each.runs for each in page.snippets())
    programs = [program for each in page.snippets() for program in each.programs]
    started = [await start("tests.pages.program", *program) for program in programs]
    if any(each.startswith(TESTS) for each in page.files):
        started.append(await start("pytest", "-q", "-p", "no:cacheprovider"))
    await asyncio.gather(*map(end_of, started))


@pytest.mark.parametrize("name", PAGES)
async def test_the_snippets_of_a_page_run(name: str, start: Start, tmp_path: Path) -> None:
    page = Page(name)
    await run_all(page, await owners_of(page, start, tmp_path), start, tmp_path)


async def test_after_the_commands_of_the_readme_its_snippets_run(start: Start, tmp_path: Path) -> None:
    page = Page("README.md")
    address = ""
    for command in page.commands(BY_HAND):
        program = shlex.split(with_addresses(command, [address] if address else []))
        if program[:2] == ["ps-service", "serve"]:
            program[program.index("--listen") + 1] = "127.0.0.1:0"
            address = await serving(start, *program[2:])
        elif program[0] == "ps-service":
            await end_of(await start("ps_service", *program[1:]))
        else:
            assert program[:2] == ["python", "-m"]
            await end_of(await start(*program[2:]))
    await run_all(page, [address], start, tmp_path)


@pytest.mark.usefixtures("forked_programs")
async def test_the_program_of_the_page_about_runs_runs(start: Start, tmp_path: Path) -> None:
    page = Page("docs/guide/run.md")
    page.write_files(tmp_path, [])
    (command,) = page.commands("ps-service run")
    # By a module, so that it is forked.
    program = command.replace("--trainers 4", "--trainers 2").replace("train.py", "-m tests.pages.program train")
    words = shlex.split(program)
    assert words[:2] == ["ps-service", "run"] and words[-2:] == ["tests.pages.program", "train"]
    said = await end_of(await start("ps_service", *words[1:]))
    assert said.count("is serving on") == 2 and said.count("] loss ") == 2


def test_the_names_of_files_and_programs_are_found() -> None:
    snippet = Snippet(1, "# job.py: `python job.py a 1` here, and `python job.py b` there\nx\n", 1, "job")
    assert snippet.programs == [["job", "a", "1"], ["job", "b"]]


def test_every_page_has_snippets() -> None:
    assert all(Page(name).snippets() for name in ("README.md", *PAGES))
    assert all((ROOT / name).exists() for name in PAGES)
