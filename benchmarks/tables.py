"""Measures the rows of tables on one owner: the map of ids, look-ups and updates, without the wire.

`python -m benchmarks.tables` prints three tables: the map of ids at two sizes, a step of a table of a million rows
beside torch's own `EmbeddingBag`, and look-ups while a table grows to `--rows`. Sides take turns, round by round, and
medians over rounds are shown. Times are processor time of one thread, so that other programs on the machine disturb
less; they do so still, through caches. `--quick` takes small sizes.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from time import thread_time
from typing import Final

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from ps_service.tables import compiled
from ps_service.tables.id_map import IdMap, make_id_map
from ps_service.tables.shard import Implementation, TableShard
from ps_wire.tables.options import SGD, Normal, RowWiseAdagrad

BATCH: Final = 81_920
"""Ids of a look-up: 4,096 bags of 20."""

BAGS: Final = 4_096
DIM: Final = 64
NARROW: Final = 16
IMPLEMENTATIONS: Final[tuple[Implementation, ...]] = ("numba", "torch") if compiled.available() else ("torch",)

Sides = dict[str, Callable[[], object]]


def main(arguments: list[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=30_000_000, help="rows that the growing table ends with")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the rows")
    chosen = parser.parse_args(arguments)
    share = 100 if chosen.quick else 1
    torch.set_num_threads(1)
    torch.manual_seed(0)
    console = Console()
    console.print(id_maps([1_000_000 // share, 10_000_000 // share], chosen.rounds))
    console.print(steps(1_000_000 // share, chosen.rounds))
    console.print(growth(chosen.rows // share, chosen.rounds))


def id_maps(sizes: list[int], rounds: int) -> Table:
    """Looking up and adding a batch of ids, for each implementation of the map."""
    shown = Table("map of ids", "ids in it", "all seen, ms", "all new, ms", "bytes per id", title="Map of ids")
    for size in sizes:
        ids = _random_ids(size)
        for implementation in IMPLEMENTATIONS:
            id_map = make_id_map(2 * size + 50 * BATCH, implementation)
            for part in ids.split(BATCH):
                id_map.find_or_add(part, 1 << 31)
            bytes_per_id = id_map.memory / len(id_map)
            sides = {"seen": _seen(id_map, ids), "new": _new(id_map)}
            times = medians(sides, rounds)
            shown.add_row(
                *(implementation, f"{size:,}", f"{times['seen']:.1f}", f"{times['new']:.1f}", f"{bytes_per_id:.1f}")
            )
    return shown


def steps(rows: int, rounds: int) -> Table:
    """A step on bags, with evenly drawn ids and with ids of Zipf's law."""
    shown = Table(
        *("step", "ids", "look up bags, ms", "backward and update, ms", "step", "step / torch's"),
        title=f"{rows:,} rows of {DIM}, {BAGS:,} bags of 20",
    )
    random = np.random.default_rng(0)
    for name, drawn in (("even", random.integers(0, rows, BATCH)), ("Zipf 1.2", random.zipf(1.2, BATCH) % rows)):
        ids, offsets, gradient = torch.from_numpy(drawn), torch.arange(0, BATCH, 20), torch.randn(BAGS, DIM)
        sides: Sides = {}
        module = torch.nn.EmbeddingBag(rows, DIM, mode="sum", sparse=True)
        local = torch.optim.SGD(module.parameters(), lr=0.01)
        results: list[torch.Tensor] = []

        def forward(module: torch.nn.Module, results: list[torch.Tensor], *given: torch.Tensor) -> None:
            results[:] = [module(*given)]

        def backward(local: torch.optim.Optimizer, results: list[torch.Tensor], gradient: torch.Tensor) -> None:
            local.zero_grad()
            results[0].backward(gradient)
            local.step()

        sides["torch EmbeddingBag, SGD look up"] = lambda m=module, r=results, i=ids, o=offsets: forward(m, r, i, o)
        sides["torch EmbeddingBag, SGD update"] = lambda s=local, r=results, g=gradient: backward(s, r, g)
        for optimizer in (SGD(0.01), RowWiseAdagrad(0.01)):
            for implementation in IMPLEMENTATIONS:
                shard = TableShard(DIM, optimizer, Normal(), implementation=implementation)
                for part in torch.arange(rows).split(BATCH):
                    shard.look_up(part)
                side = f"{type(optimizer).__name__}, {implementation}"
                sides[f"{side} look up"] = lambda s=shard, i=ids, o=offsets: s.pooled_rows_of(i, o, None, False)
                sides[f"{side} update"] = lambda s=shard, i=ids, o=offsets, g=gradient: _update(s, i, o, g)
        times = medians(sides, rounds)
        reference = times["torch EmbeddingBag, SGD look up"] + times["torch EmbeddingBag, SGD update"]
        for side in [each.removesuffix(" look up") for each in sides if each.endswith(" look up")]:
            look_up, update = times[f"{side} look up"], times[f"{side} update"]
            shown.add_row(
                *(side, name, f"{look_up:.1f}", f"{update:.1f}", f"{look_up + update:.1f}"),
                f"{(look_up + update) / reference:.2f}",
            )
    return shown


def growth(most: int, rounds: int) -> Table:
    """Look-ups in a table that grows, with the bytes of its rows."""
    shown = Table(
        *("rows", "all seen, ms", "all new, ms", "new, longest", "bytes per row", "beside row and state"),
        title=f"A growing table, rows of {NARROW}, row-wise Adagrad, {BATCH:,} ids in a look-up",
    )
    shard = TableShard(NARROW, RowWiseAdagrad(), Normal())
    row = 4 * NARROW + 4
    sizes = [size for size in (10_000, 100_000, 1_000_000, 10_000_000) if size < most] + [most]
    for size in sizes:
        times = []
        while shard.size < size:
            ids = _random_ids(min(BATCH, size - shard.size))
            began = thread_time()
            shard.look_up(ids)
            if len(ids) == BATCH:
                times.append(1e3 * (thread_time() - began))
        (present,) = [torch.cat([block["ids"] for block in _some_blocks(shard)])]
        batches = [present[torch.randint(len(present), (BATCH,))] for _ in range(rounds)]
        turns = iter(batches * 2)
        seen = medians({"seen": lambda turns=turns: shard.look_up(next(turns))}, rounds)["seen"]
        new = f"{statistics.median(times):.1f}" if times else ""
        longest = f"{max(times):.1f}" if times else ""
        each = shard.memory / shard.size
        shown.add_row(f"{shard.size:,}", f"{seen:.1f}", new, longest, f"{each:.1f}", f"{each - row:.1f}")
    return shown


def medians(sides: Sides, rounds: int) -> dict[str, float]:
    """Milliseconds of each side, after one round that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds + 1):
        for name, run in sides.items():
            began = thread_time()
            run()
            times[name].append(1e3 * (thread_time() - began))
    return {name: statistics.median(each[1:]) for name, each in times.items()}


def _update(shard: TableShard, ids: torch.Tensor, offsets: torch.Tensor, gradients: torch.Tensor) -> None:
    # The ids are 0, 1, … in the order in which they were added, so each is the key of its row, too.
    gradient = shard.gradient(ids, gradients, offsets, None, len(ids))
    assert gradient.pending is not None
    shard.update(gradient.pending)


def _seen(id_map: IdMap, ids: torch.Tensor) -> Callable[[], object]:
    def run() -> None:
        id_map.find(batches.pop() if batches else ids[:BATCH])

    batches = [ids[torch.randint(len(ids), (BATCH,))] for _ in range(64)]
    return run


def _new(id_map: IdMap) -> Callable[[], object]:
    batches = [_random_ids(BATCH) for _ in range(32)]
    return lambda: id_map.find_or_add(batches.pop(), 1 << 31)


def _some_blocks(shard: TableShard) -> Iterator[dict[str, torch.Tensor]]:
    """Every hundredth block of a large table, all of a small one."""
    apart = max(1, shard.size // 2_000_000)
    return (block for i, block in enumerate(shard.blocks(8_192)) if i % apart == 0)


def _random_ids(count: int) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (count,))


if __name__ == "__main__":
    main()
