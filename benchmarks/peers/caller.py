"""The trainer's side of a `hosted.Owner` that is reached by a call of a name with arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from benchmarks import data, jobs
from benchmarks.rows import Row
from benchmarks.trainer import Config
from benchmarks.work import Echoes, Forwards, OverlappedSteps, Steps, Work

Call = Callable[..., Any]


class Caller:
    """The work of the rows through remote calls of `hosted.Owner`.

    Args:
        config: The dimensions of the work.
        call: Calls a method of the owner by its name.
    """

    def __init__(self, config: Config, call: Call) -> None:
        self._config = config
        self._sizes = config.sizes
        self._call = call

    @contextmanager
    def work(self, row: Row) -> Iterator[Work]:
        """The work of a row, for a block."""
        match row.kind:
            case "echo":
                yield Echoes(lambda payload: torch.from_numpy(self._call("echo", payload.numpy())), row.bytes)
            case "emb_forward":
                forward = self._table(row)
                yield Forwards(forward, data.bags(self._sizes, zipf=row.zipf))
                self._call("drop", row.name)
            case "emb_step" | "emb_step_whole":
                yield self._bags(row)
                self._call("drop", row.name)
            case "convnet_step" | "convnet_overlapped":
                overlapped = row.kind == "convnet_overlapped"
                self._call("net", row.name, data.CONVNET_LR, overlapped)
                steps = OverlappedSteps if overlapped else Steps
                yield steps(self._step(row, "images"), data.images(self._sizes), lambda: self._state(row))
                self._call("drop", row.name)
            case "linears" | "linears_whole":
                job = jobs.job("linears", self._sizes)
                self._call("linears", row.name, *job.args)
                step = self._step(row, "points") if row.kind == "linears_whole" else self._two_calls(row, jobs.loss)
                yield Steps(step, job.batches, lambda: self._state(row))
                self._call("drop", row.name)
            case "recommender_whole":
                self._call("recommender", row.name)
                step = self._two_calls(row, data.rating_loss)
                yield Steps(step, data.ratings(self._sizes), lambda: self._state(row))
                self._call("drop", row.name)
            case kind:
                raise ValueError(f"{kind} is no work of this side")

    def _table(self, row: Row) -> Callable[[Tensor], Tensor]:
        self._call("table", row.name, self._sizes.table_rows, self._sizes.dim, data.emb_lr(row.zipf))
        return lambda ids: torch.from_numpy(self._call("forward", row.name, ids.numpy()))

    def _bags(self, row: Row) -> Work:
        config = self._config
        forward = self._table(row)
        batches = data.bags(self._sizes, config.rank, config.trainers, row.zipf)
        return Steps(
            self._step(row, "bags"), batches, lambda: {f"rows {config.rank}": forward(data.probe_ids(batches))}
        )

    def _step(self, row: Row, loss: str) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda x, y: torch.from_numpy(self._call("step", row.name, loss, x.numpy(), y.numpy()))

    def _two_calls(self, row: Row, loss_of: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        """Steps whose loss is computed here."""

        def step(x: Tensor, y: Tensor) -> Tensor:
            # Copied, because arrays that come through Ray cannot be written to.
            outputs = torch.tensor(self._call("outputs", row.name, x.numpy()), requires_grad=True)
            loss = loss_of(outputs, y)
            loss.backward()
            self._call("learn", row.name, outputs.grad.numpy())
            return loss

        return step

    def _state(self, row: Row) -> dict[str, Tensor]:
        return {key: torch.from_numpy(value) for key, value in self._call("state", row.name).items()}
