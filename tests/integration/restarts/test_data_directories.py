"""What a data directory holds is shown, as many checkpoints stay as are asked for, and objects can be left out."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import trainer_client as tc
from ps_service.cli.commands import app
from ps_service.cli.units import size
from ps_service.durability.inspection import InspectedObject, inspect
from ps_service.durability.log_inspection import inspect_log
from ps_service.durability.store import CheckpointError
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server
from tests import hosted_models
from tests.ps_service.durability.log.test_log_inspection import flip

LINEAR = "torch.nn.modules.linear.Linear"


def server(folder: Path, hosted: bool = True, **options: object) -> Server:
    engine = Engine("ps0", AllowList([hosted_models] if hosted else []), data_dir=folder)
    return Server(engine, **{"durability": "off"} | options)  # type: ignore[arg-type]


async def train(ps: tc.Client) -> None:
    net = await ps.module(torch.nn.Linear, 4, 2, name="net")
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), name="opt", lr=0.1)
    items = await ps.table("items", 8)
    async with ps.context() as ctx:
        loss = (await net(torch.ones(1, 4))).sum() + (await items(torch.arange(100))).sum()
        await ctx.backward(loss, step=[opt, items.optimizer])


async def write(folder: Path, count: int, **options: object) -> None:
    for _ in range(count):
        async with server(folder, **options) as owner, tc.connect(owner.address) as ps:
            await train(ps)
            await owner.drain(1)


def shown(*arguments: object) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["inspect", *map(str, arguments)])
    return result.exit_code, result.output


async def test_it_is_shown_what_a_data_directory_holds(tmp_path: Path) -> None:
    await write(tmp_path, 2)
    newest, before = inspect(tmp_path)
    assert (newest.folder.name, before.folder.name) == ("checkpoint-000002", "checkpoint-000001")
    assert (newest.owner, newest.damage, newest.sessions) == ("ps0", "", 2) and 0 <= newest.age_seconds < 600
    assert newest.nbytes == sum(each.stat().st_size for each in newest.folder.iterdir() if each.suffix != ".json")
    found = {each.name: each for each in newest.objects}
    assert found["net"] == InspectedObject("net", LINEAR, 4 * (8 + 2), 2)
    assert found["opt"].version == 2 and found["items.optimizer"].version == 2
    assert found["items"].rows == 100
    code, text = shown(tmp_path)
    assert code == 0
    for part in (
        "checkpoint-000002   whole",
        f"net               {LINEAR}",
        "100 ",
        "checkpoint-000002 of ps0, written 20",
    ):
        assert part in text
    code, text = shown(tmp_path, "--json")
    listed = json.loads(text)["checkpoints"]
    assert code == 0 and [each["folder"] for each in listed] == [str(newest.folder), str(before.folder)]
    assert {each["name"] for each in listed[0]["objects"]} == set(found)


async def test_the_log_is_shown(tmp_path: Path) -> None:
    async with server(tmp_path, durability="always") as owner, tc.connect(owner.address) as ps:
        kept = [await ps.module(torch.nn.Linear, 4, 2, name=name) for name in ("net", "another")]
        log = inspect_log(tmp_path, inspect(tmp_path))
        # The start of the owner, a session and the modules; the last of them knows that the others are on the disk.
        assert log is not None and (log.begin, log.records, log.damage) == (0, 4, "")
        code, text = shown(tmp_path)
        what = f"the log of ps0 has 4 records from the beginning, {size(log.end)}, from position 0 to {log.end}"
        assert code == 0 and what in text
        assert len(kept) == 2
        await owner.drain(1)
    code, text = shown(tmp_path)
    assert code == 0 and "the log has 0 records behind the newest checkpoint, 0 B, from position" in text
    path = tmp_path / f"log-{0:020}"
    damaged = bytearray(path.read_bytes())
    damaged[50] ^= 1
    path.write_bytes(damaged)
    (tmp_path / "checkpoint-000001").rename(tmp_path / "elsewhere")
    code, text = shown(tmp_path)
    assert code == 1 and "is damaged at position 0" in text.replace("\n", " ")


async def test_what_the_log_has_of_objects_is_shown(tmp_path: Path) -> None:
    async with server(tmp_path, durability="interval:0.01") as owner, tc.connect(owner.address) as ps:
        net = await ps.module(torch.nn.Linear, 4, 2, name="net")
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), name="opt", lr=0.1)
        # Handles that nobody keeps are released in the background, and the log is written while it is read.
        kept = [await ps.module(torch.nn.Linear, 1, 1, name="gone")]
        for count in (2, 3):
            for _ in range(count):
                async with ps.context() as ctx:
                    await ctx.backward((await net(torch.ones(1, 4))).sum(), step=opt)
            if count == 2:
                await asyncio.to_thread(owner.engine.checkpoints.write)
        await ps.delete("gone")
        kept += [await ps.module(torch.nn.Linear, 1, 1, name="late"), await ps.module(torch.nn.Linear, 1, 1)]
        await ps.durable()
        found = inspect(tmp_path)
        log = inspect_log(tmp_path, found)
        assert log is not None and (log.owner, log.damage, log.torn, log.files) == ("", "", False, 1)
        assert log.begin == found[0].position > 0 and 0 <= log.age_seconds < 600
        named = {each.name: (each.class_name, each.version, each.changes) for each in log.objects if each.name}
        assert named == {"opt": ("torch.optim.sgd.SGD", 5, 3), "late": (LINEAR, None, 1)} and len(kept) == 3
        code, text = shown(tmp_path)
        assert code == 0 and "Made or changed in the log" in text and "and 1 without a name" in text
        assert str(found[0].position) in text and re.search(r"^opt +torch.optim.sgd.SGD +5 +3$", text, re.MULTILINE)
        code, text = shown(tmp_path, "--json")
        assert {each["name"] for each in json.loads(text)["log"]["objects"]} == {"opt", "late", ""}


async def test_the_log_is_verified_as_far_as_older_checkpoints_need_it(tmp_path: Path) -> None:
    async with server(tmp_path, durability="always") as owner, tc.connect(owner.address) as ps:
        for name in ("a", "b", "c"):
            await ps.module(torch.nn.Linear, 4, 2, name=name)
            if name != "c":
                await asyncio.to_thread(owner.engine.checkpoints.write)
    newest, oldest = inspect(tmp_path)
    log = inspect_log(tmp_path, [newest, oldest])
    assert log is not None and log.begin == newest.position > oldest.position > 0
    assert {each.name for each in log.objects if each.name} == {"c"}
    flip(tmp_path, oldest.position + 50)
    again = inspect_log(tmp_path, [newest, oldest])
    assert again is not None and again.records == log.records
    assert re.search(rf"damaged at position {oldest.position}: .*; only older checkpoints need that part", again.damage)
    # What an owner would start from now, and what it could not.
    state = newest.folder / "state.pb"
    state.write_bytes(state.read_bytes()[:-1])
    assert shown(tmp_path)[0] == 1
    flip(tmp_path, oldest.position + 50)
    log = inspect_log(tmp_path, inspect(tmp_path))
    assert log is not None and (log.begin, log.damage) == (oldest.position, "")
    assert {each.name for each in log.objects if each.name} == {"b", "c"}
    code, text = shown(tmp_path)
    assert code == 0 and f"{state} is damaged or missing" in text and "behind the newest checkpoint" in text


async def test_damage_is_told_and_the_objects_are_those_of_the_newest_that_is_whole(tmp_path: Path) -> None:
    await write(tmp_path, 2)
    state = tmp_path / "checkpoint-000002" / "state.pb"
    state.write_bytes(state.read_bytes()[:-1])
    code, text = shown(tmp_path)
    assert code == 0 and f"{state} is damaged or missing" in text and "checkpoint-000001 of ps0" in text
    (tmp_path / "checkpoint-000001" / "manifest.json").write_text("{}")
    code, text = shown(tmp_path)
    assert code == 1 and text.count("is damaged or missing") == 2 and "of ps0" not in text
    code, text = shown(tmp_path, "--json")
    assert code == 1 and json.loads(text)["checkpoints"][1]["age_seconds"] is None


def test_a_folder_without_checkpoints_is_told(tmp_path: Path) -> None:
    assert shown(tmp_path) == (1, f"{tmp_path} holds no checkpoint\n")
    code, text = shown(tmp_path / "none")
    assert code == 2 and "is no data directory: there is no such folder" in text


@pytest.mark.parametrize("kept", [1, 3])
async def test_as_many_checkpoints_stay_as_are_asked_for(tmp_path: Path, kept: int) -> None:
    await write(tmp_path, 5, keep_checkpoints=kept)
    names = [each.folder.name for each in inspect(tmp_path)]
    assert names == [f"checkpoint-{5 - number:06}" for number in range(kept)]


async def test_an_object_that_cannot_be_made_any_more_is_left_out(tmp_path: Path) -> None:
    async with server(tmp_path) as owner, tc.connect(owner.address) as ps:
        await train(ps)
        affine = await ps.module(hosted_models.Affine, 2, 2, name="affine")
        await ps.optimizer(torch.optim.SGD, affine.parameters(), name="its optimizer", lr=0.1)
        await owner.drain(1)
    with pytest.raises(
        CheckpointError, match=r"Affine 'affine' cannot be made again.*without it \(--leave-out affine\)"
    ):
        await server(tmp_path, hosted=False).start()
    async with server(tmp_path, hosted=False, leave_out=["affine", "never there"]) as owner:
        (event,) = [each for each in owner.engine.events.latest(10) if "left out" in each.text]
        # What was made from it is left out, too.
        assert event.text.startswith("left out, as it was asked to: ") and event.level == "warning"
        assert "Affine 'affine'" in event.text and "SGD 'its optimizer'" in event.text
        async with tc.connect(owner.address) as ps:
            assert not (await ps.module(torch.nn.Linear, 4, 2, name="net")).was_made
            with pytest.raises(tc.errors.UnknownNameError):
                await ps.attach("affine")
            with pytest.raises(tc.errors.UnknownNameError):
                await ps.attach("its optimizer")
        await owner.drain(1)
    assert "affine" not in {each.name for each in inspect(tmp_path)[0].objects}


async def test_an_object_without_a_name_is_left_out_by_its_id(tmp_path: Path) -> None:
    async with server(tmp_path) as owner, tc.connect(owner.address) as ps:
        affine = await ps.module(hosted_models.Affine, 2, 2)
        await owner.drain(1)
        object_id = affine.ref.object_id
    with pytest.raises(CheckpointError, match=rf"an anonymous .*Affine cannot be made again.*--leave-out {object_id}"):
        await server(tmp_path, hosted=False).start()
    async with server(tmp_path, hosted=False, leave_out=[object_id]) as owner:
        assert len(owner.engine.registry) == 0


async def test_names_that_are_not_there_are_told(tmp_path: Path) -> None:
    await write(tmp_path, 1)
    async with server(tmp_path, leave_out=["nte"]) as owner:
        (event,) = [each for each in owner.engine.events.latest(10) if "left out" in each.text]
        assert event.text.endswith("nothing: checkpoint-000001 has no object nte")
