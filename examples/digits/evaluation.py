"""Classifies the held-out digits with the trained network."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import trainer_client as tc

BATCH_SIZE = 128


async def predict(address: str, images: Tensor, advanced: Callable[[int, int], None]) -> Tensor:
    """Classifies digits with the owner's network, without dropout and without a context.

    Args:
        address: the owner's ``host:port``.
        images: ``[N, 1, 28, 28]`` float32.
        advanced: called with the number of digits so far and with N.

    Returns:
        The predicted digits, ``[N]`` int64.
    """
    async with tc.connect(address) as ps:
        net = await ps.module("examples.digits.Net", name="net")
        net.eval()
        predictions = []
        done = 0
        with torch.no_grad():
            for x in images.split(BATCH_SIZE):
                predictions.append((await net(x)).argmax(dim=1))
                done += len(x)
                advanced(done, len(images))
    return torch.cat(predictions)
