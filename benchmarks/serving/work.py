"""A trainer of a table, and what it says: `python -m benchmarks.serving.work --rows 100000 --owner ADDRESS`."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence

import numpy as np
import torch

import trainer_client as tc

DIM = 16
BATCH = 2048


def zipf(rows: int, count: int, rng: np.random.Generator) -> torch.Tensor:
    """Ids of a Zipf distribution (exponent 1.1), bounded by `rows`."""
    return torch.from_numpy((rng.zipf(1.1, count) - 1) % rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains until its standard input ends, and says for each line there how many steps it has made since the last."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--owner", required=True, help="its address")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two steps")
    told = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rng = np.random.default_rng(told.seed)
    asked: list[str] = []

    def listen() -> None:
        asked.extend(iter(sys.stdin.readline, ""))
        asked.append("end")

    threading.Thread(target=listen, daemon=True).start()
    with tc.connect(told.owner) as ps:
        items = ps.table("items", DIM, tc.tables.RowWiseAdagrad(lr=0.05))
        batches = [zipf(told.rows, BATCH, rng) for _ in range(64)]
        print("ready", flush=True)
        count, began, answered = 0, time.perf_counter(), 0
        while True:
            with ps.context() as ctx:
                loss = items(batches[count % 64]).square().mean()
                ctx.backward(loss, step=items.optimizer)
            count += 1
            time.sleep(told.pause)
            if len(asked) > answered:
                if asked[answered] == "end":
                    return
                answered += 1
                print(json.dumps([count, time.perf_counter() - began]), flush=True)
                count, began = 0, time.perf_counter()


if __name__ == "__main__":
    main()
