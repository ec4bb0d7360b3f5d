"""Readers of what lies in a data directory: manifests, checkpoints and logs, with hashes and checksums put right."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import shutil
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.durability import keeper
from ps_service.durability.inspection import inspect
from ps_service.durability.keeper import Keeper
from ps_service.durability.log import records
from ps_service.durability.log.log import Log
from ps_service.durability.log_inspection import inspect_log
from ps_service.durability.manifest import NAME, DamagedError, Manifest, described
from ps_service.durability.store import STATE, CheckpointError, checkpoints_in
from ps_service.engine import Engine
from ps_service.server import Server
from ps_wire.v1 import checkpoint_pb2 as pb
from tests.allowed import allowed
from tests.fuzz import hosted
from tests.fuzz.cases import Case
from tests.fuzz.mutations import change, changed_bytes
from tests.fuzz.targets.target import Reader, only

_SEGMENT: Final = 256 * 1024


def engine(folder: Path) -> Engine:
    """An owner that hosts nothing yet."""
    return Engine("ps0", allowed(hosted), threads=1, data_dir=folder)


async def trained(folder: Path) -> None:
    """An owner that has written a checkpoint and a log behind it, and was killed."""
    original, keeper.Log = keeper.Log, partial(Log, segment_bytes=_SEGMENT)  # type: ignore[misc, assignment]
    try:
        server = Server(engine(folder), durability="always")
        async with server, tc.connect(server.address) as ps:
            net = await ps.module(nn.Linear, 4, 2, name="net")
            opt = await ps.optimizer(optim.Adam, net.parameters(), lr=0.1, policy=tc.policies.Sync(1))
            items = await ps.table("items", 4, max_rows=30, evict=tc.tables.Eviction(ttl=60.0))
            echo = await ps.create("tests.fuzz.hosted.Echo", 1, name="echo")
            for i in range(4):
                async with ps.context() as ctx:
                    loss = (await net(torch.ones(1, 4))).sum() + (await items(torch.arange(i, i + 9))).sum()
                    await ctx.backward(loss, step=[opt, items.optimizer])
                await echo.remote("hand_out", [i, torch.ones(2)])
                if i == 1:
                    await asyncio.to_thread(server.engine.checkpoints.write)
            await items.remove(torch.tensor([3]))
            await net.load_state_dict(await net.state_dict())
            await server.stop()
    finally:
        keeper.Log = original  # type: ignore[misc]


def plain_changed(value: Any, chance: random.Random) -> Any:
    """A value of JSON in which something was changed."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(sorted(value))
        if chance.random() < 0.1:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: plain_changed(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        return [*value[:at], plain_changed(value[at], chance), *value[at + 1 :]]
    return chance.choice(
        [None, 0, -1, 2**70, 0.5, "", "x" * 999, "../state.pb", [], {}, [[]], {"": {}}, True, "ps0", 1]
    )


class _Directory(Reader):
    """A data directory; a case says which files of it are others."""

    def __init__(self, folder: Path) -> None:
        self._from = folder
        self._folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        self._runner = asyncio.Runner()
        (self._checkpoint,) = checkpoints_in(folder)
        self._log = next(each for each in folder.iterdir() if each.name.startswith("log-"))

    def close(self) -> None:
        self._runner.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _laid(self, **files: bytes) -> Path:
        """The directory with other files: `state`, `manifest` or `log`."""
        shutil.rmtree(self._folder)
        shutil.copytree(self._from, self._folder)
        checkpoint = self._folder / self._checkpoint.name
        if "log" in files:
            (self._folder / self._log.name).write_bytes(files["log"])
        if "state" in files:
            (checkpoint / STATE).write_bytes(files["state"])
            manifest = Manifest.read(checkpoint, verify=False)
            manifest.files[STATE] = described(checkpoint / STATE) or {}
            (checkpoint / NAME).write_bytes(manifest.to_bytes())
        if "manifest" in files:
            (checkpoint / NAME).write_bytes(files["manifest"])
        return self._folder

    def _start(self, folder: Path) -> None:
        """Starts an owner from a directory, in which it may be refused."""
        self._runner.run(self._resume(folder))

    async def _resume(self, folder: Path) -> None:
        made = engine(folder)
        try:
            with only(CheckpointError), closing(Keeper(made, folder)) as kept:
                kept.resume()
                kept.drop_strangers()
        finally:
            made.close()


class Manifests(_Directory):
    """Manifests, of which most have the right hash of what they say."""

    name: ClassVar[str] = "manifest"

    def make(self, chance: random.Random) -> Case:
        written = (self._checkpoint / NAME).read_bytes()
        if chance.random() < 0.3:
            return Case(self.name, [changed_bytes(written, chance)])
        content = json.loads(written)
        del content["blake2b"]
        for _ in range(chance.randint(1, 2)):
            content = plain_changed(content, chance)
        try:
            digest = hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=32).hexdigest()
        except (TypeError, ValueError):
            digest = ""
        return Case(
            self.name, [json.dumps({"blake2b": digest, **content} if isinstance(content, dict) else content).encode()]
        )

    def read(self, case: Case) -> None:
        (self._checkpoint_in(self._folder) / NAME).write_bytes(case.parts[0])
        with only(DamagedError, ValueError):
            Manifest.read(self._checkpoint_in(self._folder))
        with only(CheckpointError):
            inspect(self._folder)

    def _checkpoint_in(self, folder: Path) -> Path:
        found = folder / self._checkpoint.name
        if not found.is_dir():
            self._laid()
        return found


class Checkpoints(_Directory):
    """States of checkpoints, from which an owner starts."""

    name: ClassVar[str] = "checkpoint"

    def make(self, chance: random.Random) -> Case:
        state = pb.Checkpoint.FromString((self._checkpoint / STATE).read_bytes())
        if chance.random() < 0.1:
            return Case(self.name, [changed_bytes(state.SerializeToString(), chance)])
        for _ in range(chance.randint(1, 3)):
            change(state, chance)
        return Case(self.name, [state.SerializeToString()])

    def read(self, case: Case) -> None:
        self._start(self._laid(state=case.parts[0]))


class Logs(_Directory):
    """Logs, of which some have damaged bytes, and others records that say something else."""

    name: ClassVar[str] = "log"

    def make(self, chance: random.Random) -> Case:
        content = bytearray(self._log.read_bytes())
        found = list(records.read(memoryview(bytes(content)), 0))
        end = found[-1].end
        if chance.random() < 0.2:
            at = chance.randrange(end)
            content[at : at + 64] = changed_bytes(bytes(content[at : at + 64]), chance)
            return Case(self.name, [bytes(content[:end])])
        each = chance.choice(found)
        message = pb.LogRecord.FromString(each.message)
        for _ in range(chance.randint(1, 2)):
            change(message, chance)
        # The records behind it keep their positions only if it is as long as before; otherwise it is the last.
        data, payload = message.SerializeToString(), bytes(each.payload)
        body = memoryview(data + payload)
        made = records.header(each.position, each.synced, len(data), body) + bytes(body)
        content[each.position : each.position + len(made)] = made
        last = end if records.size(len(data), len(payload)) == each.end - each.position else each.position + len(made)
        return Case(self.name, [bytes(content[:last])])

    def read(self, case: Case) -> None:
        folder = self._laid(log=case.parts[0].ljust(_SEGMENT, b"\0"))
        with only(CheckpointError):
            inspect_log(folder, inspect(folder))
        self._start(folder)


Make = Callable[[Path], Reader]

FILES: Final[tuple[Make, ...]] = (Manifests, Checkpoints, Logs)
