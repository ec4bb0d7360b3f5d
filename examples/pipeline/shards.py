"""The two halves of a network that classifies digits, which take about the same time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ps_service import hosted
from trainer_client import rpc

SIDE = 28
DIGITS = 10


@hosted
class Shard1(nn.Module):
    """The first half: from images to features.

    Args:
        width: Channels of the features.
        seed: Makes the same weights wherever it is made.
    """

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.conv1 = nn.Conv2d(1, width, 3, padding=1)
            self.conv2 = nn.Conv2d(width, width, 3, padding=1)
            self.conv3 = nn.Conv2d(width, width, 3, padding=1)
            _begin(self)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images ``[N, 1, 28, 28]`` to features ``[N, width, 14, 14]``, float32."""
        x = F.relu(self.conv1(x))
        return F.max_pool2d(F.relu(self.conv3(F.relu(self.conv2(x)))), 2)


@hosted
class Shard2(nn.Module):
    """The second half: from features to digits.

    Args:
        width: Channels of the features.
        seed: Makes the same weights wherever it is made.
    """

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            # A quarter of the pixels, so twice the channels take as much time as the first half.
            self.conv1 = nn.Conv2d(width, 2 * width, 3, padding=1)
            self.conv2 = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
            self.conv3 = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
            _begin(self)
            self.fc = nn.Linear(2 * width * (SIDE // 4) ** 2, DIGITS)

    def forward(self, features: rpc.RRef | Tensor) -> Tensor:
        """Classifies digits.

        Args:
            features: The result of the first half, ``[N, width, 14, 14]``, or a reference to it, which is fetched.

        Returns:
            The logarithm of each digit's probability, ``[N, 10]`` float32.
        """
        x = features if isinstance(features, Tensor) else features.to_here()
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = F.max_pool2d(F.relu(self.conv3(x)), 2)
        return F.log_softmax(self.fc(x.flatten(1)), dim=1)


def _begin(shard: nn.Module) -> None:
    """Draws weights that preserve the variance of activations; with torch's default, six layers hardly learn."""
    for layer in shard.children():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
