"""Two parameter servers: one steps for every gradient, the other once for the gradients of all trainers."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from examples.batched_updates.model import apply_gradients, network
from examples.batched_updates.settings import Settings
from ps_service import async_execution, remote
from trainer_client import rpc


class ParameterServer:
    """The network and its optimizer. Subclasses define how trainers update it.

    Args:
        settings: Number of trainers, learning rate and seed.

    Attributes:
        updates: Number of steps so far.
    """

    def __init__(self, settings: Settings) -> None:
        self.updates = 0
        self._model = network(settings.seed)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=settings.lr)
        self._lock = threading.Lock()

    @remote
    def parameters(self) -> dict[str, Tensor]:
        """Copies of all parameters, by name."""
        with self._lock:
            return self._copied()

    def _step(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        apply_gradients(self._model, self._optimizer, gradients)
        self.updates += 1
        return self._copied()

    def _copied(self) -> dict[str, Tensor]:
        # The next step must not write to tensors that are being sent.
        return {name: parameter.detach().clone() for name, parameter in self._model.named_parameters()}


class EagerServer(ParameterServer):
    """Steps for every gradient."""

    @remote
    def update(self, rank: int, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """Steps with the gradients of one trainer.

        Args:
            rank: The trainer's number.
            gradients: By the names of the parameters.

        Returns:
            The parameters after the step.
        """
        with self._lock:
            return self._step(gradients)


class BatchingServer(ParameterServer):
    """Steps when the gradients of all trainers have arrived."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._trainers = settings.trainers
        self._gathered: dict[int, dict[str, Tensor]] = {}
        self._stepped: rpc.Future[dict[str, Tensor]] = rpc.Future()

    @remote
    @async_execution
    def update(self, rank: int, gradients: dict[str, Tensor]) -> rpc.Future[dict[str, Tensor]]:
        """Adds the gradients of one trainer. With the last trainer's, it takes one step with the mean of all.

        No thread waits: the answers are sent when the future that all of them share is done.

        Args:
            rank: The trainer's number.
            gradients: By the names of the parameters.

        Returns:
            The parameters after the step.

        Raises:
            ValueError: This trainer has brought its gradients for this step already.
        """
        with self._lock:
            if rank in self._gathered:
                raise ValueError(f"trainer {rank} has brought its gradients for this step already")
            self._gathered[rank] = gradients
            stepped, gathered = self._stepped, self._gathered
            if len(gathered) < self._trainers:
                return stepped
            self._gathered, self._stepped = {}, rpc.Future()
            try:
                result = self._step(_mean([gathered[each] for each in sorted(gathered)]))
            except Exception as error:
                stepped.set_exception(error)
            else:
                stepped.set_result(result)
            return stepped


def _mean(gradients: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([each[name] for each in gradients]).mean(0) for name in gradients[0]}
