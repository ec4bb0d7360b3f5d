"""The state that an owner had at an earlier version is built from its data directory, which stays as it is."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn, optim

import trainer_client as tc
from ps_service.cli.replay_view import moment
from ps_service.durability import keeper
from ps_service.durability.log.log import Log
from ps_service.durability.point_in_time import BuiltState, Moment, build
from ps_service.durability.store import CheckpointError
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_wire.errors import InvalidArgumentError
from tests import hosted_models
from tests.conftest import StartProcess
from tests.forking.process import Forking
from tests.integration.restarting import Owner
from tests.integration.restarts.test_killed import one_pass
from tests.integration.support import bits


def hashed(folder: Path) -> dict[str, str]:
    """What is in a folder, with the times of its files."""
    return {
        str(path): f"{path.stat().st_mtime_ns} {hashlib.blake2b(path.read_bytes()).hexdigest()}"
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def made(name: str, data_dir: Path) -> Engine:
    return Engine(name, AllowList([hosted_models]), data_dir=data_dir)


async def built(
    folder: Path, output: Path, versions: Mapping[str, int] = {}, position: int | None = None
) -> BuiltState:
    before = hashed(folder)
    try:
        return await asyncio.to_thread(build, folder, Moment(versions, position), output, made)
    finally:
        assert hashed(folder) == before


async def states(ps: tc.Client, *names: str) -> Any:
    """The states of networks and of their optimizers, and the versions of these."""
    found: list[Any] = []
    for name in names:
        net = await ps.module(nn.Linear, 4, 2, name=name, seed=1)
        assert not found or not net.was_made
        opt = await ps.optimizer(optim.Adam, net.parameters(), lr=0.1)
        found += [await net.state_dict(), await opt.state_dict()]
    return bits(found)


async def states_in(folder: Path, *names: str) -> Any:
    """The same of an owner that starts from a folder."""
    async with Owner(folder) as owner, tc.connect(owner.address) as ps:
        assert len(owner.server.engine.registry) >= 2 * len(names)
        return await states(ps, *names)


async def steps(ps: tc.Client, count: int, name: str = "net") -> list[Any]:
    """The states after each of so many steps."""
    net = await ps.module(nn.Linear, 4, 2, name=name, seed=1)
    opt = await ps.optimizer(optim.Adam, net.parameters(), lr=0.1)
    found = []
    for i in range(count):
        await one_pass(ps, net, opt, i)
        found.append(await states(ps, name))
    return found


async def test_a_version_before_a_kill_is_built_bit_by_bit(
    start_process: StartProcess, forking: Forking, tmp_path: Path
) -> None:
    folder = tmp_path / "ps0"
    process = await start_process("--name", "ps0", "--data-dir", str(folder), "--durability", "interval:1")
    async with tc.connect(process.address) as ps:
        expected = [await states(ps, "net"), *await steps(ps, 9)]
        process.process.kill()
        await process.process.wait()

    async def run(*arguments: str) -> tuple[int | None, str]:
        async with aclosing(await forking.begin("ps_service", *arguments, errors=True)) as command:
            out, errors = await command.communicate()
            return command.returncode, (out + errors).decode()

    before = hashed(folder)
    output = tmp_path / "at7"
    code, told = await run("replay", str(folder), "--until", "7", "--output", str(output))
    assert code == 0, told
    assert re.search(r"^ps0 at position \d+ of its log: the beginning and \d+ records behind it$", told, re.MULTILINE)
    assert "net.optimizer has version 7\n" in told and f"serve --name ps0 --data-dir {output}" in told
    assert hashed(folder) == before
    code, told = await run("inspect", str(output), "--json")
    (checkpoint,) = json.loads(told)["checkpoints"]
    assert code == 0 and {each["name"]: each["version"] for each in checkpoint["objects"]} == {
        "net": None,
        "net.optimizer": 7,
    }
    (path,) = output.glob("checkpoint-*/tensors-*.safetensors")
    with safe_open(path, "pt") as tensors:
        weight = tensors.get_tensor("net/weight")
    assert await states_in(output, "net") == expected[7]
    async with Owner(output) as owner, tc.connect(owner.address) as ps:
        assert torch.equal(
            (await (await ps.module(nn.Linear, 4, 2, name="net", seed=1)).state_dict())["weight"], weight
        )
    code, told = await run("replay", str(folder), "--until", "10", "--output", str(tmp_path / "at10"))
    assert code == 2 and "the log ends before that, with net.optimizer at version 9" in told
    assert not (tmp_path / "at10").exists()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A data directory with two checkpoints, at versions 3 and 6 of 9, and the states at all of them.

    It is for all tests: one that changes it takes a copy.
    """
    folder = tmp_path_factory.mktemp("kept") / "ps0"

    async def make() -> list[Any]:
        async with Owner(folder, durability="interval:0.01") as owner, tc.connect(owner.address) as ps:
            found = [await states(ps, "net")]
            for _ in range(3):
                if len(found) > 1:
                    await asyncio.to_thread(owner.server.engine.checkpoints.write)
                found += await steps(ps, 3)
            return found

    return folder, asyncio.run(make())


@pytest.mark.parametrize("version", [0, 2, 5, 6, 9])
async def test_versions_are_built_from_the_last_checkpoint_before_them(
    kept: tuple[Path, list[Any]], tmp_path: Path, version: int
) -> None:
    folder, expected = kept
    past = await built(folder, tmp_path / "out", {"": version})
    assert past.versions == {"net.optimizer": version}
    assert past.checkpoint == ("" if version < 3 else f"checkpoint-{version // 3 if version < 9 else 2:06}")
    assert past.records > 0 or version in (3, 6)
    assert await states_in(tmp_path / "out", "net") == expected[version]


async def test_a_position_names_any_moment(kept: tuple[Path, list[Any]], tmp_path: Path) -> None:
    folder, expected = kept
    at8 = await built(folder, tmp_path / "at8", {"net.optimizer": 8})
    again = await built(folder, tmp_path / "again", position=at8.position)
    assert (again.position, again.records, again.versions) == (at8.position, at8.records, {"net.optimizer": 8})
    assert await states_in(tmp_path / "again", "net") == expected[8]
    between = await built(folder, tmp_path / "between", position=at8.position - 1)
    assert between.versions == {"net.optimizer": 7} and between.records == at8.records - 1
    latest = await built(folder, tmp_path / "latest")
    assert latest.versions == {"net.optimizer": 9}
    assert await states_in(tmp_path / "latest", "net") == expected[9]
    with pytest.raises(CheckpointError, match=rf"the log ends at position \d+, before {1 << 40}"):
        await built(folder, tmp_path / "none", position=1 << 40)


async def test_moments_that_are_not_there_are_told_in_words(kept: tuple[Path, list[Any]], tmp_path: Path) -> None:
    folder, output = kept[0], tmp_path / "out"
    for versions, why in (
        ({"": 10}, "the log ends before that, with net.optimizer at version 9"),
        ({"net.SGD": 4}, "there is no optimizer 'net.SGD', with net.optimizer at version 9"),
    ):
        with pytest.raises(CheckpointError, match=re.escape(why)):
            await built(folder, output, versions)
        assert not output.exists()
    output.mkdir()
    (output / "something").touch()
    with pytest.raises(CheckpointError, match="is not empty: choose another folder"):
        await built(folder, output)
    with pytest.raises(CheckpointError, match="there is no such folder"):
        await asyncio.to_thread(build, tmp_path / "nothing", Moment(), tmp_path / "new", made)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="has neither a checkpoint that is whole nor the beginning of a log"):
        await built(tmp_path / "empty", tmp_path / "new")


async def test_what_was_cut_off_the_log_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "Log", partial(Log, segment_bytes=1 << 18))
    folder, output = tmp_path / "ps0", tmp_path / "out"
    async with Owner(folder, durability="always") as owner, tc.connect(owner.address) as ps:
        large = await ps.module(nn.Linear, 256, 256)
        for _ in range(2):  # more than one file of the log
            await large.load_state_dict(nn.Linear(256, 256).state_dict())
        del large
        await steps(ps, 3)
        for _ in range(2):
            await asyncio.to_thread(owner.server.engine.checkpoints.write)
        await steps(ps, 1)
    why = re.escape("has kept nothing before its oldest checkpoint, which has version 3 of 'net.optimizer'")
    for versions in ({"": 2}, {"net.optimizer": 2}):
        with pytest.raises(CheckpointError, match=why):
            await built(folder, output, versions)
    with pytest.raises(CheckpointError, match=r"has kept nothing before position \d+ of the log, of its oldest"):
        await built(folder, output, position=1)
    assert not output.exists()
    assert (await built(folder, output, {"": 4})).versions == {"net.optimizer": 4}


async def test_of_several_optimizers_each_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "ps0"
    async with Owner(folder, durability="always") as owner, tc.connect(owner.address) as ps:
        await steps(ps, 2, "a")
        await steps(ps, 3, "b")
        expected = await states(ps, "a", "b")
        await steps(ps, 2, "a")
    past = await built(folder, tmp_path / "out", {"a.optimizer": 2, "b.optimizer": 3})
    assert past.versions == {"a.optimizer": 2, "b.optimizer": 3}
    assert await states_in(tmp_path / "out", "a", "b") == expected
    assert (await built(folder, tmp_path / "a4", {"a.optimizer": 4})).versions == {"a.optimizer": 4, "b.optimizer": 3}
    assert (await built(folder, tmp_path / "a1", {"a.optimizer": 1})).versions == {"a.optimizer": 1}
    for versions, why in (
        (
            {"": 3},
            "say of which optimizer, with NAME=VERSION: with a.optimizer at version 2 and b.optimizer at version 0",
        ),
        ({"a.optimizer": 1, "b.optimizer": 1}, "there is no such moment: at position "),
    ):
        with pytest.raises(CheckpointError, match=re.escape(why)):
            await built(folder, tmp_path / "none", versions)


async def test_the_directory_of_an_owner_that_runs_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "ps0"
    async with Owner(folder, durability="always") as owner, tc.connect(owner.address) as ps:
        await steps(ps, 1)
        with pytest.raises(
            CheckpointError, match=r"an owner uses the data directory .*: stop it first, or give a copy"
        ):
            await built(folder, tmp_path / "out", {"": 1})
    assert (await built(folder, tmp_path / "out", {"": 1})).versions == {"net.optimizer": 1}


async def test_a_damaged_checkpoint_is_left_out(kept: tuple[Path, list[Any]], tmp_path: Path) -> None:
    folder, expected = tmp_path / "ps0", kept[1]
    shutil.copytree(kept[0], folder)
    (folder / "checkpoint-000002" / "state.pb").write_bytes(b"damaged")
    past = await built(folder, tmp_path / "out", {"": 8})
    assert past.checkpoint == "checkpoint-000001"
    assert await states_in(tmp_path / "out", "net") == expected[8]


async def test_what_an_owner_without_a_log_did_in_between_is_not_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "ps0"
    found: list[Any] = []
    for durability in ("always", "off", "always"):
        async with Owner(folder, durability=durability) as owner, tc.connect(owner.address) as ps:
            found = found or [await states(ps, "net")]
            found += await steps(ps, 2)
            if durability != "always" or len(found) > 3:
                await owner.server.drain(1)
            else:
                await asyncio.to_thread(owner.server.engine.checkpoints.write)
    versions = [0, 2, 4, 5]
    for version in versions:
        output = tmp_path / f"at{version}"
        try:
            assert (await built(folder, output, {"": version})).versions == {"net.optimizer": version}
        except CheckpointError as error:
            # The checkpoint before was removed, because there are two later ones.
            assert version < 4, error
            continue
        assert await states_in(output, "net") == found[version]
    with pytest.raises(CheckpointError):
        await built(folder, tmp_path / "none", {"": 3})


@pytest.mark.parametrize(
    ("until", "position", "expected"),
    [
        ([], None, Moment()),
        (["7"], None, Moment({"": 7})),
        (["net.opt=7", "b=c=0"], None, Moment({"net.opt": 7, "b=c": 0})),
        ([], 0, Moment({}, 0)),
    ],
)
def test_moments_are_read(until: Sequence[str], position: int | None, expected: Moment) -> None:
    assert moment(until, position) == expected


@pytest.mark.parametrize(
    ("until", "position"),
    [(["a"], None), (["=3"], None), (["a=-1"], None), (["3", "4"], None), (["a=1", "3"], None), (["3"], 3)],
)
def test_moments_of_another_form_are_refused(until: Sequence[str], position: int | None) -> None:
    with pytest.raises(InvalidArgumentError, match="--until"):
        moment(until, position)
