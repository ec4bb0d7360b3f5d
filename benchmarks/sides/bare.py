"""The side of a bare program: blocking sockets, headers by `struct`, and torch.

It has no checks, no names and no retries, and one trainer: what plain Python can reach at most.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple

import torch
from torch import Tensor

from benchmarks import data
from benchmarks.data import RECOMMENDER
from benchmarks.models import NeuMF
from benchmarks.rows import Row
from benchmarks.sides.frames import Operation, no_delay, receive, send
from benchmarks.trainer import Config, Wire, serve
from benchmarks.work import Steps, Work


class Bare:
    """The work of the rows with the recommender as one module.

    Args:
        config: The address of the owner.
    """

    def __init__(self, config: Config) -> None:
        self._config = config

    @contextmanager
    def work(self, row: Row) -> Iterator[Work]:
        """The work of a row, for a block."""
        host, port = self._config.owners[0].rsplit(":", 1)
        with no_delay(socket.create_connection((host, int(port)))) as connection:

            def ask(operation: Operation, *tensors: Tensor) -> Tensor:
                send(connection, operation, tensors)
                return receive(connection)[1]

            step = _step(ask, call_by_call=row.kind == "recommender_whole_calls")
            yield Steps(step, data.ratings(self._config.sizes), lambda: _state(ask(Operation.STATE)))


def _step(ask: Callable[..., Tensor], call_by_call: bool) -> Callable[[Tensor, Tensor], Tensor]:
    def step(pairs: Tensor, liked: Tensor) -> Tensor:
        scores = ask(Operation.FORWARD, pairs).requires_grad_()
        loss = data.rating_loss(scores, liked)
        (gradient,) = torch.autograd.grad(loss, scores)
        if call_by_call:
            ask(Operation.BACKWARD, gradient)
            ask(Operation.STEP)
        else:
            ask(Operation.BACKWARD_AND_STEP, gradient)
        return loss

    return step


def _state(numbers: Tensor) -> dict[str, Tensor]:
    shapes = {name: value.shape for name, value in NeuMF(*astuple(RECOMMENDER)).state_dict().items()}
    parts = numbers.split([shape.numel() for shape in shapes.values()])
    return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def main() -> None:
    """Serves the harness."""
    wire = Wire()
    serve(wire, Bare(Config.read(next(iter(wire)))))


if __name__ == "__main__":
    main()
