"""Attacks on files: checkpoints, logs, and exports of tables, with all hashes put right."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import AsyncExitStack
from pathlib import Path

import torch

import trainer_client as tc
from ps_service.durability.keys import make
from ps_service.durability.manifest import NAME, DamagedError, Manifest, described
from ps_service.durability.store import CheckpointError, checkpoints_in
from ps_service.engine import Engine
from ps_service.server import Server
from tests import hosted_models
from tests.allowed import allowed
from tests.attack.attack import attack
from tests.attack.scene import Scene
from tests.integration.restarts.test_signed import change_record, change_tensor

PATHS = ("../outside", "/etc/passwd", "..", ".", "", "a/../../outside", "sub/file", "\x00", "..\\outside", "x" * 300)


async def _written(folder: Path, key: Path, drains: bool) -> None:
    """Has an owner train, and leave a checkpoint, or its log alone."""
    server = Server(
        Engine("ps1", allowed(hosted_models), data_dir=folder), durability="always", checkpoint_key_file=key
    )
    await server.start()
    async with tc.connect(server.address) as ps:
        net = await ps.module("torch.nn.Linear", 4, 2, name="net", seed=1)
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
        for _ in range(2):
            async with ps.context() as ctx:
                await ctx.backward((await net(torch.ones(8, 4))).sum(), step=opt)
    await (server.drain(1) if drains else server.stop())


async def _starts(folder: Path, key: Path | None) -> bool:
    """Whether an owner takes what is in a copy of a folder."""
    copy = folder.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    try:
        async with Server(
            Engine("ps1", allowed(hosted_models), data_dir=copy), durability="always", checkpoint_key_file=key
        ) as server:
            return any(each.name == "net" for each in server.engine.registry.objects())
    except (CheckpointError, ValueError, OSError):
        return False


@attack(
    "changes a tensor in a checkpoint, and gradients in the log, with all hashes put right; takes signatures away",
    "an owner with a key does not start from it",
)
async def change_a_checkpoint_with_its_hashes(at: Scene) -> None:
    key = at.folder / "keys"
    make(key)
    for what, change, drains in (("a checkpoint", change_tensor, True), ("a log", change_record, False)):
        folder = at.folder / what / "ps1"
        folder.parent.mkdir()
        await _written(folder, key, drains)
        at.hold(await _starts(folder, key), f"{what} that nobody has changed is refused")
        changed = checkpoints_in(folder)[0] if drains else folder
        change(changed)
        at.tried += 2
        at.hold(await _starts(folder, None), f"{what} does not fit its hashes: the attack is none")
        at.hold(not await _starts(folder, key), f"{what} that was changed is taken")
        for signature in folder.rglob("*.sig"):
            signature.unlink()
        at.tried += 1
        at.hold(not await _starts(folder, key), f"{what} without its signature is taken")


@attack(
    "puts paths that lead elsewhere into the manifest of a checkpoint, its hash put right, and devices into it",
    "it is refused, also without a key, and so is what is no regular file",
)
async def lead_a_manifest_elsewhere(at: Scene) -> None:
    folder, key = at.folder / "data" / "ps1", at.folder / "keys"
    folder.parent.mkdir()
    make(key)
    await _written(folder, key, drains=True)
    (checkpoint,) = checkpoints_in(folder)
    outside = folder.parent / "outside"
    outside.write_bytes(b"secret")
    written = (checkpoint / NAME).read_bytes()
    for path in ("../../outside", str(outside), "sub/../../../outside", *PATHS):
        manifest = Manifest.read(checkpoint, verify=False)
        manifest.files[path] = described(outside) or {}
        (checkpoint / NAME).write_bytes(manifest.to_bytes())
        at.tried += 1
        at.hold(not await _starts(folder, None), f"{path[:20]!r} is taken")
        (checkpoint / NAME).write_bytes(written)
    inside = next(each for each in checkpoint.iterdir() if each.suffix == ".safetensors")
    inside.unlink()
    for make_it in (lambda: inside.symlink_to("/dev/zero"), lambda: os.mkfifo(inside)):
        make_it()
        at.tried += 1
        try:
            Manifest.read(checkpoint)
        except DamagedError:
            inside.unlink()
            continue
        at.hold(False, "what is no regular file is read")


@attack(
    "puts paths that lead elsewhere, and links, into the list of an export that somebody restores",
    "nothing outside of its folder is read",
)
async def lead_an_export_elsewhere(at: Scene) -> None:
    at.identities.add("bulk-admin", "trainer", "bulk", "admin")
    at.server.engine.access.look()
    ps = await at.connect("bulk-admin")
    table = await ps.table("items", dim=2, optimizer=tc.tables.SGD(lr=0.1))
    await table.upsert(torch.arange(3), torch.ones(3, 2))
    folder = at.folder / "rows"
    await table.export(folder)
    (listing,) = (each for each in folder.iterdir() if each.suffix == ".json")
    told = json.loads(listing.read_text())
    part = folder / told["parts"][0]["file"]
    outside = at.folder / part.name.replace("part", "outside")
    outside.write_bytes(part.read_bytes())
    part.unlink()
    async with AsyncExitStack() as stack:
        stack.callback(outside.unlink)
        for path in (f"../{outside.name}", str(outside), f"./../{outside.name}", f"x/../../{outside.name}"):
            told["parts"][0] |= {"file": path, "sha256": hashlib.sha256(outside.read_bytes()).hexdigest()}
            listing.write_text(json.dumps(told))
            await at.refused(table.restore(folder), path, tc.PsError, OSError)
        told["parts"][0]["file"] = part.name
        listing.write_text(json.dumps(told))
        part.symlink_to("/dev/zero")
        await at.refused(table.restore(folder), "a link to a device", tc.PsError, OSError)
    at.hold(len(list(folder.parent.glob("outside*"))) == 0, "something was written outside")


@attack(
    "names objects, tables and optimizers by paths, and has an owner write checkpoints of them",
    "every file is in the data directory, and the owner starts again with all of them",
)
async def write_outside_of_the_data_directory(at: Scene) -> None:
    folder = at.folder / "inner" / "data"
    folder.parent.mkdir()
    names = [*PATHS, "%2e%2e%2foutside", "~", "$HOME", "*", "\u2024\u2024/outside", "checkpoint-1/state.pb", "log-0"]
    kept = []
    server = Server(Engine("ps1", allowed(hosted_models), data_dir=folder), durability="always")
    await server.start()
    async with tc.connect(server.address) as ps:
        for number, name in enumerate(filter(None, names)):
            at.tried += 1
            try:
                await ps.module("torch.nn.Linear", 2, 2, name=name)
                kept.append(name)
                await ps.table(f"{name}/{number}"[-200:], dim=2, optimizer=tc.tables.SGD(lr=0.1))
            except (tc.PsError, ValueError):
                continue
    await server.drain(1)
    found = {each.name for each in at.folder.rglob("*") if folder not in each.parents}
    at.hold(found <= {"inner", "data", "tokens"}, f"there is {found} outside")
    async with Server(Engine("ps1", allowed(hosted_models), data_dir=folder), durability="always") as again:
        at.hold({each.name for each in again.engine.registry.objects()} >= set(kept), "some are not there again")
