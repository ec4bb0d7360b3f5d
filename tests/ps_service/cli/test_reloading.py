"""Tests that an owner with --reload starts again when its modules have changed, with real processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import trainer_client as tc
from ps_service.cli import reloading
from ps_service.cli.commands import app
from ps_service.cli.reloading import Watch
from tests.forking.process import Forking
from tests.owner_processes import ROOT, OwnerProcess, StartOwner, forked_owners

TEXT = """
from torch import nn
from ps_service import hosted, remote


@hosted
class Net(nn.Linear):
    @remote
    def version(self):
        return 1


@remote
def answer():
    return 1
"""

SCRIPT = f"""
import importlib.util, os, sys, types
# In place of packages that import torch.
sys.modules["ps_wire"] = sys.modules["ps_wire.codec"] = types.SimpleNamespace(sources=None)
spec = importlib.util.spec_from_file_location("reloading", {reloading.__file__!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(os.getpid(), *sys.argv[1:])
if "--again" not in sys.argv:
    module.start_again("--again")
"""


@pytest.fixture
async def start(forking: Forking) -> AsyncIterator[StartOwner]:
    """Starts owners that start again in a process that is forked, too, and not in a new interpreter."""
    async with forked_owners(forking) as start:

        async def start_here(*flags: str, cwd: Path = ROOT, **variables: str) -> OwnerProcess:
            return await start(*flags, cwd=cwd, PYTHONPATH=str(ROOT), **forking.variables, **variables)

        yield start_here


async def line_with(stream: asyncio.StreamReader | None, text: str) -> str:
    """The next line with a text."""
    assert stream is not None
    async with asyncio.timeout(60):
        while text not in (line := (await stream.readline()).decode()):
            assert line, f"the owner ended without saying {text!r}"
    return line


async def served_again(owner: OwnerProcess) -> str:
    """The address at which the owner serves again."""
    return (await line_with(owner.process.stdout, "is serving on")).split()[-1]


async def test_the_state_is_kept_with_a_data_directory(start: StartOwner, tmp_path: Path) -> None:
    file, data = tmp_path / "reloaded_net.py", tmp_path / "data"
    file.write_text(TEXT)
    flags = ("--import", "reloaded_net", "--reload", "--data-dir", str(data), "--log-format", "text")
    owner = await start(*flags, cwd=tmp_path)
    async with tc.connect(owner.address) as ps:
        net = await ps.module("reloaded_net.Net", 2, 1, name="net")
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=1.0)
        async with ps.context() as ctx:
            await ctx.backward((await net(torch.ones(1, 2))).sum(), step=opt)
        before = await net.state_dict()
        assert await net.version() == 1
        file.write_text(TEXT.replace("return 1", "return 22"))
        said = await line_with(owner.process.stderr, "has changed")
        assert f"{file} has changed: ps0 drains, and starts again with what is in {data}" in said
        assert await served_again(owner) == owner.address
        assert await net.version() == 22
        after = await net.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
    owner.process.terminate()
    _, lines = await owner.ended()
    assert owner.process.returncode == 0
    assert not [line for line in lines if "lost" in line]


async def test_a_file_with_an_error_is_waited_for(start: StartOwner, tmp_path: Path) -> None:
    package = tmp_path / "reloaded_package"
    package.mkdir()
    (package / "__init__.py").write_text("from reloaded_package.inner import answer, Net\n")
    file = package / "inner.py"
    file.write_text(TEXT)
    flags = ("--import", "reloaded_package", "--reload", "--log-format", "text", "--listen", "127.0.0.1:0")
    owner = await start(*flags, cwd=tmp_path)
    async with tc.connect(owner.address) as ps:
        await ps.module("reloaded_package.Net", 2, 1, name="net")
        file.write_text(TEXT + "\ndef broken(:\n")
        said = await line_with(owner.process.stderr, "cannot be loaded")
        assert f"{file} cannot be loaded, so the owner goes on with what it has: invalid syntax" in said
        assert await ps.call("reloaded_package.answer") == 1
    file.write_text(TEXT + "\nunknown_name\n")
    said = await line_with(owner.process.stderr, "has changed")
    assert f"{file} has changed: ps0 drains, and starts again without its objects, because it has no --data-dir" in said
    await line_with(owner.process.stderr, "so these objects are lost with it: net")
    said = await line_with(owner.process.stderr, "waiting for a change of")
    assert f"waiting for a change of {package / '__init__.py'}, {file} [" in said
    file.write_text(TEXT.replace("return 1", "return 22"))
    assert await served_again(owner) == owner.address
    async with tc.connect(owner.address) as ps:
        assert await ps.call("reloaded_package.answer") == 22
    owner.process.terminate()
    await owner.ended()
    assert owner.process.returncode == 0


def test_a_script_starts_again_with_its_arguments_and_more_in_the_same_process(tmp_path: Path) -> None:
    script = tmp_path / "ps-service"
    script.write_text(SCRIPT)
    command = [sys.executable, "-S", str(script), "serve", "--name", "a b"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        said, _ = process.communicate()
    assert process.returncode == 0
    before = f"{process.pid} serve --name a b"
    assert said == f"{before}\n{before} --again\n"


def test_there_has_to_be_something_to_watch() -> None:
    result = CliRunner().invoke(app, ["serve", "--reload"])
    assert result.exit_code == 2
    assert result.stderr == "ps-service: --reload watches the modules of --import, and there is none\n"


def test_a_file_counts_as_changed_once_it_stays_the_same(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("a = 1\n")
    watch = Watch([])
    watch.more = {str(file)}
    assert not watch.changed() and not watch.changed()
    file.write_text("a = 2  # half\n")
    assert not watch.changed()
    file.write_text("a = 2  # all of it\n")
    assert not watch.changed()
    assert watch.changed() == str(file)
    file.unlink()
    assert not watch.changed() and not watch.changed(), "it will be there again"


async def test_a_look_that_fails_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([RuntimeError("the files change"), "", "module.py"])

    def changed(_: Watch) -> str:
        found = next(looks)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(Watch, "changed", changed)
    watch = Watch([])
    await watch.wait()
    assert watch.file == "module.py"
