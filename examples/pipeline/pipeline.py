"""Sends several micro-batches at a time through two owners."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer_client import autograd, rpc
from trainer_client.nn import RemoteModule
from trainer_client.optim import DistributedOptimizer

MOMENTUM = 0.9


class Pipeline:
    """Two halves of a network, each on an owner, and one optimizer over both.

    Args:
        first: Takes a batch.
        second: Takes a reference to the result of the first half.
        lr: Learning rate of SGD.
    """

    def __init__(self, first: RemoteModule, second: RemoteModule, lr: float) -> None:
        self.first = first.get_module_rref()
        self.second = second.get_module_rref()
        parameters = [*first.remote_parameters(), *second.remote_parameters()]
        self._opt = DistributedOptimizer(torch.optim.SGD, parameters, lr=lr, momentum=MOMENTUM)

    def forward(self, micro_batches: Sequence[Tensor], in_flight: int) -> list[Tensor]:
        """Sends micro-batches through both halves.

        The results of the first half go from owner to owner; this process has only references to them.

        Args:
            micro_batches: The inputs of the first half.
            in_flight: Most micro-batches in flight at once; with 1 each one is awaited before the next is sent.

        Returns:
            The results of the second half, in order.
        """
        outputs: list[Tensor] = []
        sent: deque[rpc.Future[Tensor]] = deque()
        for micro_batch in micro_batches:
            if len(sent) == in_flight:
                outputs.append(sent.popleft().wait())
            between = self.first.remote().forward(micro_batch)
            sent.append(self.second.rpc_async().forward(between))
        return outputs + rpc.wait_all(sent)

    def halves(self, micro_batch: Tensor) -> tuple[float, float]:
        """Computes a micro-batch in both halves, one after the other and then at once.

        Args:
            micro_batch: An input of the first half.

        Returns:
            The seconds of each. Their ratio says how much two processes at once compute on this machine.
        """
        with torch.no_grad():
            between = self.first.rpc_sync().forward(micro_batch)
            began = time.perf_counter()
            self.first.rpc_sync().forward(micro_batch)
            self.second.rpc_sync().forward(between)
            middle = time.perf_counter()
            rpc.wait_all([self.first.rpc_async().forward(micro_batch), self.second.rpc_async().forward(between)])
        return middle - began, time.perf_counter() - middle

    def step(self, x: Tensor, y: Tensor, micro_batches: int, in_flight: int) -> float:
        """Takes one step with a batch.

        Args:
            x: The input of the first half, ``[N, ...]``.
            y: Labels, ``[N]`` int64.
            micro_batches: Number of micro-batches that the batch is split into.
            in_flight: Most micro-batches in flight at once, in the forward and in the backward.

        Returns:
            The loss before the step.
        """
        with autograd.context() as context_id:
            loss = self.backward(context_id, x, y, micro_batches, in_flight)
            self._opt.step(context_id)
        return loss

    def backward(self, context_id: int, x: Tensor, y: Tensor, micro_batches: int, in_flight: int) -> float:
        """Adds the gradients of a batch to a context, and returns its loss; see :meth:`step`."""
        outputs = self.forward(x.chunk(micro_batches), in_flight)
        # The contribution of each micro-batch to the mean over the batch.
        losses = [
            F.nll_loss(output, labels, reduction="sum") / len(y)
            for output, labels in zip(outputs, y.chunk(micro_batches), strict=True)
        ]
        for start in range(0, len(losses), in_flight):
            autograd.backward(context_id, losses[start : start + in_flight])
        return sum(loss.item() for loss in losses)
