"""The pipeline: micro-batches on their way through two owners, several at a time."""

from __future__ import annotations

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
        second: Takes a reference to what the first half made of it.
        lr: Learning rate of SGD.
    """

    def __init__(self, first: RemoteModule, second: RemoteModule, lr: float) -> None:
        self.first = first.get_module_rref()
        self.second = second.get_module_rref()
        parameters = [*first.remote_parameters(), *second.remote_parameters()]
        self._opt = DistributedOptimizer(torch.optim.SGD, parameters, lr=lr, momentum=MOMENTUM)

    def forward(self, micro_batches: Sequence[Tensor], in_flight: int) -> list[Tensor]:
        """Sends micro-batches through both halves.

        What lies between the halves goes from owner to owner: here there are only references to it.

        Args:
            micro_batches: What the first half takes.
            in_flight: How many may be on their way at once; 1 waits for each before the next is sent.

        Returns:
            What the second half made of each, in their order.
        """
        outputs: list[Tensor] = []
        sent: deque[rpc.Future[Tensor]] = deque()
        for micro_batch in micro_batches:
            if len(sent) == in_flight:
                outputs.append(sent.popleft().wait())
            between = self.first.remote().forward(micro_batch)
            sent.append(self.second.rpc_async().forward(between))
        return outputs + rpc.wait_all(sent)

    def step(self, x: Tensor, y: Tensor, micro_batches: int, in_flight: int) -> float:
        """Learns a batch.

        Args:
            x: What the first half takes, ``[N, ...]``.
            y: Labels, ``[N]`` int64.
            micro_batches: Into how many the batch is cut.
            in_flight: How many may be on their way at once, forwards and, afterwards, backwards.

        Returns:
            The loss before the step.
        """
        with autograd.context() as context_id:
            loss = self.backward(context_id, x, y, micro_batches, in_flight)
            self._opt.step(context_id)
        return loss

    def backward(self, context_id: int, x: Tensor, y: Tensor, micro_batches: int, in_flight: int) -> float:
        """Leaves the gradients of a batch in a context, and gives its loss; see :meth:`step`."""
        outputs = self.forward(x.chunk(micro_batches), in_flight)
        # The micro-batches' parts of the batch's mean.
        losses = [
            F.nll_loss(output, labels, reduction="sum") / len(y)
            for output, labels in zip(outputs, y.chunk(micro_batches), strict=True)
        ]
        for start in range(0, len(losses), in_flight):
            autograd.backward(context_id, losses[start : start + in_flight])
        return sum(loss.item() for loss in losses)
