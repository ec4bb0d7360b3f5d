"""A checkpoint that could not be written leaves the one before and its log usable, and so does one that is damaged."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.durability import files
from ps_service.durability.log.disk import Disk
from tests.integration.restarting import Owner
from tests.integration.restarts.conftest import Action, checkpoint
from tests.integration.restarts.test_checkpoints_under_way import everything
from tests.integration.restarts.test_killed import one_pass


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Owner]:
    async with Owner(tmp_path, durability="interval:0.01") as made:
        yield made


def failing(original: Any, is_meant: Callable[..., bool], error: OSError) -> Any:
    """A function that does what another does, until its arguments are those that are meant."""

    def run(*args: Any, **options: Any) -> Any:
        if is_meant(*args):
            raise error
        return original(*args, **options)

    return run


def of_tensors(_: Any, path: Path, *__: Any) -> bool:
    return path.suffix == ".safetensors"


class Written:
    """Which descriptors are those of files with tensors."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.descriptors: set[int] = set()
        create = Disk.create

        def created(disk: Disk, path: Path, nbytes: int) -> int:
            descriptor = create(disk, path, nbytes)
            if path.suffix == ".safetensors":
                self.descriptors.add(descriptor)
            else:
                self.descriptors.discard(descriptor)
            return descriptor

        monkeypatch.setattr(Disk, "create", created)

    def has(self, _: Disk, descriptor: int, *__: Any) -> bool:
        return descriptor in self.descriptors


STAGES = ["create", "write", "sync", "state", "manifest", "rename"]
FULL = OSError(28, "No space left on device")


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("stage", STAGES)
async def test_it_fails_at_any_stage(
    owner: Owner, ps: tc.Client, monkeypatch: pytest.MonkeyPatch, stage: str, between: Callable[[Action], None]
) -> None:
    net = await ps.module(nn.Linear, 4, 64, seed=1)
    opt = await ps.optimizer(optim.Adam, net.parameters(), lr=0.1)
    done = 0

    async def train() -> None:
        nonlocal done
        done += 1
        await one_pass(ps, net, opt, done)

    await train()
    first = await checkpoint(owner)
    await train()
    between(train)
    with monkeypatch.context() as patch:
        written = Written(patch)
        match stage:
            case "create":
                patch.setattr(Disk, "create", failing(Disk.create, of_tensors, FULL))
            case "write" | "sync":
                patch.setattr(Disk, stage, failing(getattr(Disk, stage), written.has, FULL))
            case "state" | "manifest":
                name = "state.pb" if stage == "state" else "manifest.json"
                patch.setattr(files, "write_file", failing(files.write_file, lambda path, _: path.name == name, FULL))
            case "rename":
                patch.setattr(os, "rename", failing(os.rename, lambda _, to: "checkpoint-" in Path(to).name, FULL))
        with pytest.raises(tc.errors.InternalError, match="No space left on device; checkpoint-000001 is still valid"):
            await checkpoint(owner)
    assert [path.name for path in owner.folder.glob("checkpoint-*")] == [first.name]
    await train()
    before = everything(owner)
    await owner.crash()
    assert everything(owner) == before
    await train()
    await checkpoint(owner)
    before = everything(owner)
    await owner.crash()
    assert everything(owner) == before


async def trained(ps: tc.Client, width: int = 256) -> tuple[Any, Any, Any]:
    """A module that is trained, its optimizer, and one that is not."""
    net = await ps.module(nn.Linear, 4, 2, name="net", seed=1)
    frozen = await ps.module(nn.Linear, width, width, name="frozen", seed=2)
    opt = await ps.optimizer(optim.Adam, net.parameters(), lr=0.1)
    await one_pass(ps, net, opt, 0)
    return net, opt, frozen


def own_bytes(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.iterdir() if each.stat().st_nlink == 1)


@pytest.mark.usefixtures("small_pieces")
async def test_what_has_not_changed_is_linked(owner: Owner, ps: tc.Client) -> None:
    net, opt, frozen = await trained(ps)
    nbytes = 4 * (256 * 256 + 256)
    folders = [await checkpoint(owner)]
    assert own_bytes(folders[0]) > nbytes
    for i in range(3):
        await one_pass(ps, net, opt, i)
        folders.append(await checkpoint(owner))
        assert own_bytes(folders[-1]) < nbytes / 10
    assert [path.exists() for path in folders] == [False, False, True, True]
    before = everything(owner)
    await owner.crash()
    assert everything(owner) == before
    await frozen.load_state_dict({"weight": torch.ones(256, 256), "bias": torch.ones(256)})
    assert own_bytes(await checkpoint(owner)) > nbytes
    before = everything(owner)
    await owner.crash()
    assert everything(owner) == before


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("what", ["load", "optimizer", "freeze"])
async def test_what_has_changed_without_a_step_is_not_linked(owner: Owner, ps: tc.Client, what: str) -> None:
    net, opt, _ = await trained(ps)
    saved = [await net.state_dict(), await opt.state_dict()]
    await one_pass(ps, net, opt, 1)
    await checkpoint(owner)
    if what == "load":
        await net.load_state_dict(saved[0])
    elif what == "optimizer":
        await opt.load_state_dict(saved[1])
    else:
        await net.parameter("bias").requires_grad_(False)
    await checkpoint(owner)
    before = everything(owner)
    await owner.crash()
    assert everything(owner) == before


@pytest.mark.usefixtures("small_pieces")
async def test_a_damaged_one_is_set_aside_and_the_one_before_is_used(
    owner: Owner, ps: tc.Client, between: Callable[[Action], None]
) -> None:
    net, opt, _ = await trained(ps, 64)
    count = 1

    async def train() -> None:
        nonlocal count
        count += 1
        await one_pass(ps, net, opt, count)

    between(train)
    await checkpoint(owner)
    await train()
    newest = await checkpoint(owner)
    await train()
    before = everything(owner)
    path = next(each for each in newest.glob("*.safetensors") if each.stat().st_nlink == 1)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    await owner.crash()
    assert everything(owner) == before
    assert (owner.folder / f"damaged-{newest.name}").is_dir()


@pytest.mark.usefixtures("small_pieces")
async def test_where_files_cannot_be_linked_they_are_written(
    owner: Owner, ps: tc.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await trained(ps)
    await checkpoint(owner)
    monkeypatch.setattr(os, "link", failing(os.link, lambda *_: True, OSError(1, "Operation not permitted")))
    folder = await checkpoint(owner)
    assert own_bytes(folder) > 256 * 256 * 4
    before = everything(owner)
    await owner.crash()
    assert everything(owner) == before


@pytest.mark.usefixtures("small_pieces")
async def test_a_log_that_ends_before_the_checkpoint_does_is_an_error(
    owner: Owner, ps: tc.Client, between: Callable[[Action], None]
) -> None:
    net, opt, _ = await trained(ps, 64)

    async def train() -> None:
        await one_pass(ps, net, opt, 1)

    between(train)
    await checkpoint(owner)
    await owner.server.stop()
    for path in owner.folder.glob("log-*"):
        path.unlink()
    with pytest.raises(OSError, match="the newest checkpoint needs it up to"):
        await owner.start()
