"""The side of gloo: trainers without an owner take the mean of their gradients, and each of them steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, distributed

from benchmarks import data
from benchmarks.models import Weights
from benchmarks.rows import Row
from benchmarks.trainer import Config, Wire, serve
from benchmarks.work import Steps, Work


class Gloo:
    """The work of the rows with an all-reduce, in a group of torch.distributed.

    Args:
        config: The dimensions of the work, and the rank of this trainer.
    """

    def __init__(self, config: Config) -> None:
        self._config = config

    @contextmanager
    def work(self, row: Row) -> Iterator[Work]:
        """The work of a row, for a block."""
        if row.kind != "replica_sync":
            raise ValueError(f"{row.kind} means nothing without an owner")
        config = self._config
        torch.manual_seed(data.MODEL_SEED)
        net = Weights(row.bytes // 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=data.WEIGHTS_LR)

        def step(x: Tensor, _: Tensor) -> Tensor:
            loss: Tensor = net(x)
            loss.backward()
            gradients = [each.grad for each in net.parameters() if each.grad is not None]
            for work in [distributed.all_reduce(each, async_op=True) for each in gradients]:
                work.wait()
            for each in gradients:
                each.div_(config.trainers)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        yield Steps(step, data.vectors(row.bytes // 4, config.sizes, config.rank), lambda: dict(net.state_dict()))


def main() -> None:
    """Serves the harness."""
    wire = Wire()
    config = Config.read(next(iter(wire)))
    distributed.init_process_group(
        "gloo", init_method=f"file://{config.store}", rank=config.rank, world_size=config.trainers
    )
    serve(wire, Gloo(config))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
