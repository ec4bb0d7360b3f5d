"""Seconds from an acknowledged step to a reader of the export, and the bytes that the export writes."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import ps_reader
import trainer_client as tc
from benchmarks.process import Children
from benchmarks.serving.running import running
from benchmarks.serving.work import DIM
from ps_reader import layout
from ps_reader.safetensors_file import TensorFile

_BLOCK = 65_536


@dataclass(frozen=True)
class Following:
    """What was measured.

    Attributes:
        rows: Rows of the table.
        p50_s, p99_s: Seconds from the acknowledgement of a changed row to the reader that has it.
        base_bytes: Of all rows.
        delta_bytes: Of a part that is no base, the median: what has changed in `every` seconds. 0 if there was none.
        delta_rows: Rows in it.
    """

    rows: int
    p50_s: float
    p99_s: float
    base_bytes: int
    delta_bytes: int
    delta_rows: int


async def measure(children: Children, rows: int, every: float, probes: int) -> Following:
    """Follows a table that a trainer changes: 50 steps a second of 2,048 Zipf ids."""
    with running(children, rows) as world, tempfile.TemporaryDirectory() as folder:
        world.train(1, pause=0.02)
        async with tc.connect(world.address) as ps:
            items = await ps.table("items")
            for low in range(0, rows, _BLOCK):
                ids = torch.arange(low, min(low + _BLOCK, rows))
                await items.upsert(ids, torch.zeros(len(ids), DIM))
            world.export(folder, every)
            await asyncio.to_thread(_wait, folder)
            with ps_reader.open(folder, every=0.02) as reader:
                took, seen, base = [], dict[str, tuple[int, int]](), 0
                for number in range(probes):
                    took.append(await _arrives(items, reader, number))
                    base = _note(Path(folder), seen)
                sizes, changed = zip(*seen.values(), strict=True) if seen else ((0,), (0,))
    p50, p99 = np.percentile(took, [50, 99])
    return Following(rows, p50, p99, base, int(statistics.median(sizes)), int(statistics.median(changed)))


async def _arrives(items: tc.Table, reader: ps_reader.Reader, number: int) -> float:
    """Seconds until the reader has a row that was changed and acknowledged."""
    await asyncio.sleep(0.05 + (number % 10) * 0.03)  # at any moment between two versions
    id, value = -1 - number % 7, float(number + 1)
    await items.upsert(torch.tensor([id]), torch.full((1, DIM), value))
    began = time.perf_counter()
    while True:
        table = reader.current.tables["items"]
        if id in table and table[id][0] == value:
            return time.perf_counter() - began
        await asyncio.sleep(0.002)


def _wait(folder: str) -> None:
    """Waits for the first version."""
    while not Path(folder, layout.LATEST).exists():
        time.sleep(0.2)


def _note(folder: Path, seen: dict[str, tuple[int, int]]) -> int:
    """Notes the bytes and rows of the newest part, if the newest version has one behind its base. Returns the bytes of
    all rows."""
    table = layout.read_manifest(folder, layout.latest(folder).version).tables["items"]
    if len(table.parts) > table.base:
        name = table.parts[-1]
        seen[name] = (folder / name).stat().st_size, len(TensorFile(folder / name).arrays["ids"])
    return sum((folder / each).stat().st_size for each in (*table.parts[: table.base], table.index))
