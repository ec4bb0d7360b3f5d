"""The function of a trainer that the parameter server calls."""

from __future__ import annotations

from examples.batched_updates.data import batches
from examples.batched_updates.model import gradients_of, network
from examples.batched_updates.settings import Settings
from ps_service import remote
from trainer_client import rpc


@remote
def run_trainer(server: rpc.RRef, rank: int, settings: Settings) -> None:
    """Computes gradients, sends them to the server, and continues with the parameters in its answer.

    Args:
        server: A `ParameterServer`.
        rank: This trainer's number, from 0.
        settings: The settings of the run.
    """
    model = network(settings.seed)
    parameters = server.rpc_sync().parameters()
    for images, labels in batches(settings, rank):
        model.load_state_dict(parameters)
        parameters = server.rpc_sync(timeout=0).update(rank, gradients_of(model, images, labels))
