"""The network of the tutorial: two convolutions and two linear layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ps_service import hosted


@hosted
class Net(nn.Module):
    """Classifies digits. The whole network is on one device of the owner.

    The tutorial uses ``Dropout2d`` twice, which drops whole feature maps. The second one gets ``[N, 128]`` features
    without maps (torch warns about it), and the first one is directly before the flattening. So both are plain
    ``Dropout`` here.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the logarithm of each digit's probability.

        Args:
            x: normalised images, ``[N, 1, 28, 28]`` float32.

        Returns:
            ``[N, 10]`` float32.
        """
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = torch.flatten(self.dropout1(x), 1)
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)
