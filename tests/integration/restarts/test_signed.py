"""With a key, an owner loads only what it has signed itself, whatever hashes and checksums say."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn, optim
from typer.testing import CliRunner

import trainer_client as tc
from ps_service.cli.commands import app
from ps_service.durability.keys import make
from ps_service.durability.log import records
from ps_service.durability.log.log import Log
from ps_service.durability.manifest import NAME, Manifest, described
from ps_service.durability.store import CheckpointError, checkpoints_in
from ps_service.engine import Engine
from ps_service.server import Server
from tests.allowed import allowed
from tests.integration.restarting import Owner
from tests.integration.restarts.conftest import checkpoint
from tests.integration.restarts.test_killed import one_pass
from tests.integration.support import bits


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    make(tmp_path / "keys")
    return tmp_path / "keys"


@pytest.fixture
async def owner(tmp_path: Path, key_file: Path) -> AsyncIterator[Owner]:
    async with Owner(tmp_path / "ps0", durability="always", checkpoint_key_file=key_file) as owner:
        yield owner


async def train(ps: tc.Client, *passes: int) -> Any:
    """The state of a network and its optimizer after these passes."""
    net = await ps.module(nn.Linear, 4, 2, name="net", seed=1)
    opt = await ps.optimizer(optim.Adam, net.parameters(), lr=0.1)
    for i in passes:
        await one_pass(ps, net, opt, i)
    return bits([await net.state_dict(), await opt.state_dict()])


async def started(folder: Path, key_file: Path | None, name: str = "ps0") -> Any:
    """The state that an owner has when it starts from a folder, which is left as it is."""
    copy = folder.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    engine = Engine(name, allowed(), data_dir=copy)
    async with Server(engine, checkpoint_key_file=key_file) as server, tc.connect(server.address) as ps:
        return await train(ps)


async def refused(folder: Path, key_file: Path, name: str = "ps0") -> str:
    with pytest.raises(CheckpointError) as raised:
        await started(folder, key_file, name)
    return str(raised.value)


def shown(command: str, *arguments: object) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, [command, *map(str, arguments)])
    return result.exit_code, result.output


def change_tensor(folder: Path) -> None:
    """Changes a weight in a checkpoint, and puts all hashes right."""
    path = next(each for each in sorted(folder.iterdir()) if each.suffix == ".safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    manifest = Manifest.read(folder, verify=False)
    manifest.files[path.name] = described(path) or {}
    (folder / NAME).write_bytes(manifest.to_bytes())


def change_record(folder: Path) -> None:
    """Changes the gradients in the last record of a log that has some, and puts its checksum right."""
    record = [each for each in Log(folder, None).read(0) if len(each.payload) >= 40][-1]
    path = max(each for each in folder.glob("log-*") if int(each.name[4:]) <= record.position)
    body = bytearray(record.message + bytes(record.payload))
    body[-1] ^= 1
    code = record.code
    sign = (lambda head, content: code) if code else None
    made = records.header(record.position, record.synced, len(record.message), memoryview(body), sign) + body
    content = bytearray(path.read_bytes())
    place = record.position - int(path.name[4:])
    content[place : place + len(made)] = made
    path.write_bytes(content)


async def test_it_goes_on_as_without_a_key(owner: Owner, ps: tc.Client, key_file: Path) -> None:
    async with Owner(owner.folder.with_name("plain"), durability="off") as plain, tc.connect(plain.address) as other:
        expected = await train(other, *range(9))
    await train(ps, 0, 1)
    await owner.crash()  # from the log alone
    await train(ps, 2, 3)
    await checkpoint(owner)
    await train(ps, 4)
    await owner.crash()  # from a checkpoint of an owner that went on, and the log
    await train(ps, 5)
    await owner.restart()  # from the last checkpoint
    await train(ps, 6, 7)
    make(key_file)  # another key signs from the next start on
    await owner.crash()
    await checkpoint(owner)
    assert await train(ps, 8) == expected
    assert await started(owner.folder, key_file) == expected == await started(owner.folder, None)
    code, text = shown("inspect", owner.folder, "--checkpoint-key-file", key_file)
    assert code == 0 and "whole" in text and "untrusted" not in text


async def test_a_tensor_that_was_changed_with_its_hashes_is_refused(
    owner: Owner, ps: tc.Client, key_file: Path
) -> None:
    expected = await train(ps, 0, 1)
    await owner.server.drain(1)
    (folder,) = checkpoints_in(owner.folder)
    change_tensor(folder)
    assert await started(owner.folder, None) != expected  # who looks at hashes finds nothing
    text = await refused(owner.folder, key_file)
    assert f"{folder.name} is not loaded: it is not what was signed: somebody has changed it" in text
    assert "ps-service sign" in text
    key = ("--checkpoint-key-file", key_file)
    code, text = shown("inspect", owner.folder, *key)
    assert code == 1 and "untrusted" in text and "somebody has changed it" in text
    code, text = shown("inspect", owner.folder, *key, "--json")
    assert code == 1 and json.loads(text)["checkpoints"][0]["untrusted"]
    for command in (
        ("replay", owner.folder, "--output", owner.folder.with_name("out"), *key),
        ("restore", "--from", owner.folder, "--owners", 1, "--to", owner.folder.with_name("out"), *key),
        ("restore", "--from", folder, "--owners", 1, "--to", owner.folder.with_name("out"), *key),
    ):
        code, text = shown(*command)  # type: ignore[arg-type]
        assert code == 2 and "somebody has changed it" in text


async def test_a_record_that_was_changed_with_its_checksum_is_refused(
    owner: Owner, ps: tc.Client, key_file: Path
) -> None:
    expected = await train(ps, 0, 1)
    await owner.server.stop()
    change_record(owner.folder)
    assert await started(owner.folder, None) != expected
    assert re.search(r"at position \d+ .* somebody has changed it", await refused(owner.folder, key_file))
    key = ("--checkpoint-key-file", key_file)
    code, text = shown("inspect", owner.folder, *key)
    assert code == 1 and "somebody has changed it" in text
    code, text = shown("replay", owner.folder, "--output", owner.folder.with_name("out"), *key)
    assert code == 2 and "somebody has changed it" in text


async def test_a_directory_of_another_owner_is_refused(owner: Owner, ps: tc.Client, key_file: Path) -> None:
    await train(ps, 0)
    await owner.server.stop()
    assert "somebody has changed it" in await refused(owner.folder, key_file, "ps1")
    await owner.start()
    await owner.server.drain(1)
    assert "the state of owner 'ps0', but this owner is 'ps1'" in await refused(owner.folder, key_file, "ps1")
    # Nor with its log behind the checkpoint of this one.
    async with Owner(owner.folder.with_name("ps1"), "ps1", durability="always", checkpoint_key_file=key_file) as other:
        async with tc.connect(other.address) as trainer:
            await train(trainer, 0, 1)
        await other.server.stop()
    for each in owner.folder.glob("checkpoint-*"):
        shutil.rmtree(each)
    for path in owner.folder.glob("log-*"):
        path.unlink()
    for path in other.folder.glob("log-*"):
        shutil.copy(path, owner.folder)
    assert "at position 0 " in await refused(owner.folder, key_file)


async def test_a_directory_without_signatures_is_signed_once(tmp_path: Path, key_file: Path) -> None:
    async with Owner(tmp_path / "ps0", durability="always") as owner, tc.connect(owner.address) as ps:
        await train(ps, 0)
        await owner.crash()
        assert "the log is not signed from position 0 on" in await refused(owner.folder, key_file)
        await checkpoint(owner)
        expected = await train(ps, 1)
        await owner.server.stop()
        assert "it is not signed. If you trust what is there, sign it" in await refused(owner.folder, key_file)
        key = ("--checkpoint-key-file", key_file)
        code, text = shown("sign", owner.folder, *key)
        assert code == 2 and "start the owner once without a key file, and stop it in order" in text
        await owner.start()
        code, text = shown("sign", owner.folder, *key)
        assert code == 2 and "an owner uses the data directory" in text
        await owner.server.drain(1)
        code, text = shown("sign", owner.folder, *key)
        assert code == 0 and text.count(" of ps0 is signed") == 2
        assert await started(owner.folder, key_file) == expected
        # What was signed with a key that is gone can be signed anew.
        os.unlink(key_file)
        assert "ps-service checkpoint-key" in shown("sign", owner.folder, *key)[1]
        make(key_file)
        assert "which is not in" in await refused(owner.folder, key_file)
        assert shown("sign", owner.folder, *key)[0] == 0
        assert await started(owner.folder, key_file) == expected
        (checkpoints_in(owner.folder)[1] / "state.pb").unlink()
        code, text = shown("sign", owner.folder, *key)
        assert code == 1 and "is damaged or missing" in text and text.count("is signed") == 1
        assert "give --checkpoint-key-file" in shown("sign", owner.folder)[1]


async def test_what_tools_write_is_signed(owner: Owner, ps: tc.Client, key_file: Path) -> None:
    expected = await train(ps, 0, 1)
    await owner.server.stop()
    key, out = ("--checkpoint-key-file", key_file), owner.folder.with_name("out")
    code, text = await asyncio.to_thread(shown, "replay", owner.folder, "--output", out / "at", *key)
    assert code == 0, text
    assert await started(out / "at", key_file) == expected


async def test_an_older_state_is_not_found(owner: Owner, ps: tc.Client, key_file: Path) -> None:
    before = await train(ps, 0)
    await owner.server.drain(1)
    shutil.copytree(owner.folder, owner.folder.with_name("before"))
    await owner.start()
    await train(ps, 1)
    await owner.server.drain(1)
    assert await started(owner.folder.with_name("before"), key_file) == before  # as SECURITY.md says


async def test_a_key_file_needs_a_data_directory_and_has_to_be_one(tmp_path: Path, key_file: Path) -> None:
    with pytest.raises(ValueError, match="checkpoint_key_file needs data_dir"):
        Server(Engine("ps0", allowed()), checkpoint_key_file=key_file)
    os.chmod(key_file, 0o644)
    os.mkdir(tmp_path / "none")
    with pytest.raises(ValueError, match="chmod o="):
        await started(tmp_path / "none", key_file)
