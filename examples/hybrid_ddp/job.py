"""The job of the master."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from examples.hybrid_ddp.data import EMBEDDINGS
from examples.hybrid_ddp.group import SERVER, TRAINER_NAMES, group
from examples.hybrid_ddp.model import WIDTH
from examples.hybrid_ddp.settings import Settings
from examples.hybrid_ddp.trainer import run_trainer
from trainer_client import rpc
from trainer_client.nn import RemoteModule


@dataclass(frozen=True)
class Outcome:
    """The outcome of the job."""

    table_before: Tensor
    """``[EMBEDDINGS, WIDTH]`` float32, as the parameter server made it."""
    table: Tensor
    """The same after the last step."""
    layers: list[dict[str, Tensor]]
    """For each trainer the parameters of its layer, by name."""
    losses: list[list[float]]
    """For each trainer the loss of each of its steps."""


def train(settings: Settings) -> Outcome:
    """Starts the group, makes the table, and lets the trainers train.

    Raises:
        PsError: A member failed, or did not join in time.
    """
    with group():
        options = {"mode": "sum", "sparse": True}
        table = RemoteModule(SERVER, nn.EmbeddingBag, args=(EMBEDDINGS, WIDTH), kwargs=options)
        (weight,) = table.remote_parameters()
        before = weight.to_here()
        futures = [
            rpc.rpc_async(name, run_trainer, args=(table, rank, settings), timeout=0)
            for rank, name in enumerate(TRAINER_NAMES)
        ]
        layers, losses = zip(*rpc.wait_all(futures), strict=True)
        return Outcome(before, weight.to_here(), list(layers), list(losses))
