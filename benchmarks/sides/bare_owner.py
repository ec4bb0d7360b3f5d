"""The owner of the bare program: one trainer at a time, one operation after the other, no checks."""

from __future__ import annotations

import socket
from dataclasses import astuple

import torch
from torch import Tensor

from benchmarks import data
from benchmarks.data import RECOMMENDER
from benchmarks.models import NeuMF
from benchmarks.sides.frames import Operation, no_delay, receive, send
from ps_service.memory.malloc import keep_free_memory


class BareOwner:
    """A recommender with its optimizer, which a trainer asks through a socket."""

    def __init__(self) -> None:
        torch.manual_seed(data.MODEL_SEED)
        self._net = NeuMF(*astuple(RECOMMENDER), sparse=True)
        self._optimizer = torch.optim.Adagrad(self._net.parameters(), **data.ADAGRAD)
        self._scores: Tensor | None = None

    def serve(self, connection: socket.socket) -> None:
        """Answers until the trainer closes the connection.

        Raises:
            EOFError: The trainer closed it.
        """
        while True:
            operation, numbers = receive(connection)
            send(connection, operation, self._answer(operation, numbers))

    def _answer(self, operation: Operation, numbers: Tensor) -> list[Tensor]:
        match operation:
            case Operation.FORWARD:
                self._scores = self._net(numbers.view(torch.int64).view(2, -1))
                return [self._scores]
            case Operation.BACKWARD:
                self._backward(numbers)
            case Operation.BACKWARD_AND_STEP:
                self._backward(numbers)
                self._step()
            case Operation.STEP:
                self._step()
            case Operation.STATE:
                return list(self._net.state_dict().values())
        return []

    def _backward(self, gradient: Tensor) -> None:
        assert self._scores is not None
        self._scores.backward(gradient)

    def _step(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()


def main() -> None:
    """Serves one trainer after the other, each with a new model, until SIGTERM."""
    # Our owners do the same. Otherwise the row would compare allocators.
    keep_free_memory()
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"bare is serving on 127.0.0.1:{listener.getsockname()[1]}")
    while True:
        connection, _ = listener.accept()
        with no_delay(connection):
            try:
                BareOwner().serve(connection)
            except EOFError:
                continue


if __name__ == "__main__":
    main()
