"""Snapshots and what is made of them: an owner that starts again is what the one before it was."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from torch import optim

from ps_service.durability import writing
from ps_service.durability.books import bookkeeping
from ps_service.durability.keeper import Keeper
from ps_service.durability.manifest import Manifest
from ps_service.durability.restoring import restore
from ps_service.durability.store import STATE, CheckpointError
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.rpc.servicer import Servicer
from tests import hosted_models
from tests.hosted_models import Affine, Counter
from trainer_client.client.client import Client
from trainer_client.session.settings import Settings
from trainer_client.transport.in_process import MemoryConnector


def new_engine(name: str = "ps0", hosts_models: bool = True) -> Engine:
    # Nothing is written there, except by a keeper.
    return Engine(name, AllowList([hosted_models] if hosts_models else []), threads=1, data_dir=Path("nowhere"))


class Running:
    """An owner in this process, and a trainer of it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.servicer = Servicer(engine)
        self.trainer = Client([MemoryConnector(self.servicer.serve)], Settings())

    async def stop(self) -> None:
        await self.trainer.close()
        self.servicer.close()
        self.engine.close()


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    running = Running(new_engine())
    await running.trainer.open()
    yield running
    await running.stop()


def write(engine: Engine, folder: Path, orderly: bool = True) -> Manifest:
    manifest = writing.write(engine, bookkeeping(engine), folder, orderly)
    manifest.files.update({path.name: {} for path in folder.iterdir()})  # as `Store` does
    return manifest


@pytest.mark.parametrize("orderly", [True, False])
async def test_a_module_has_its_handle_name_and_numbers_again(running: Running, tmp_path: Path, orderly: bool) -> None:
    module = await running.trainer.module(Affine, 2, 3, name="net")
    await module.parameter("bias").requires_grad_(False)
    state = await module.state_dict()
    again = new_engine()
    restore(again, tmp_path, write(running.engine, tmp_path, orderly))
    hosted = again.registry.find(module.ref)
    torch.testing.assert_close(hosted.value.state_dict(), state, rtol=0, atol=0)
    assert (hosted.name, again.registry.named("net")) == ("net", hosted)
    assert [each.requires_grad for each in hosted.parameters.values()] == [True, False]
    again.close()


async def test_an_optimizer_goes_on_with_its_state_and_version(running: Running, tmp_path: Path) -> None:
    ps = running.trainer
    module = await ps.module(Affine, 2, 3, name="net")
    optimizer = await ps.optimizer(optim.Adam, module.parameters(), lr=0.1)
    async with ps.context() as context:
        await context.backward((await module(torch.ones(1, 2))).sum())
        await optimizer.step(context)
    state = (await optimizer.state_dict())["state"]
    again = new_engine()
    restore(again, tmp_path, write(running.engine, tmp_path))
    hosted = again.registry.find(optimizer.remotes["ps0"].handle.ref)
    assert hosted.value.version == 1
    torch.testing.assert_close(hosted.value.optimizer.state_dict()["state"], state, rtol=0, atol=0)
    again.close()


async def test_sessions_and_their_references_are_there_again(running: Running, tmp_path: Path) -> None:
    module = await running.trainer.module(Affine, 2, 3)
    again = new_engine()
    restore(again, tmp_path, write(running.engine, tmp_path))
    (session,) = again.sessions.all()
    assert session.trainer == running.trainer.trainer
    assert again.registry.held_by(session.trainer) == {module.ref.object_id: 1}
    assert again.incarnations.earlier == (running.engine.incarnations.current,)
    assert running.engine.incarnations.current in again.incarnations
    again.close()


async def test_an_object_without_a_state_is_left_out_and_named(running: Running, tmp_path: Path) -> None:
    await running.trainer.create(Counter, 1, name="counter")
    await running.trainer.module(Affine, 2, 3, name="net")
    manifest = write(running.engine, tmp_path)
    assert [line["name"] for line in manifest.objects] == ["net"]
    (left_out,) = manifest.left_out
    assert left_out["name"] == "counter"
    assert "no state_dict" in left_out["why"]


async def test_a_checkpoint_of_another_owner_is_refused(running: Running, tmp_path: Path) -> None:
    other = new_engine("ps1")
    with pytest.raises(CheckpointError, match="state of owner 'ps0', but this owner is 'ps1'"):
        restore(other, tmp_path, write(running.engine, tmp_path))
    other.close()


async def test_a_class_that_is_not_imported_is_named(running: Running, tmp_path: Path) -> None:
    await running.trainer.module(Affine, 2, 3, name="net")
    manifest = write(running.engine, tmp_path)
    again = new_engine(hosts_models=False)
    with pytest.raises(CheckpointError, match=r"Affine 'net' cannot be made again.*--import"):
        restore(again, tmp_path, manifest)
    again.close()


async def test_a_checkpoint_without_its_state_is_refused(running: Running, tmp_path: Path) -> None:
    manifest = write(running.engine, tmp_path)
    (tmp_path / STATE).unlink()
    again = new_engine()
    with pytest.raises(CheckpointError, match="cannot be read"):
        restore(again, tmp_path, manifest)
    again.close()


async def test_a_keeper_begins_empty_and_continues_from_its_checkpoint(running: Running, tmp_path: Path) -> None:
    keeper = Keeper(running.engine, tmp_path / "data")
    keeper.resume()
    assert running.engine.incarnations.earlier == ()
    module = await running.trainer.module(Affine, 2, 3, name="net")
    await keeper.keep(orderly=True)
    keeper.close()
    again = new_engine()
    keeper = Keeper(again, tmp_path / "data")
    keeper.resume()
    assert again.registry.find(module.ref).name == "net"
    keeper.close()
    again.close()
