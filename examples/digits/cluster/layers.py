"""The layers of the example's network, split over owners."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from torch import nn

from ps_service import hosted


def _conv1() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU())


def _conv2() -> nn.Module:
    return nn.Sequential(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten())


def _fc1() -> nn.Module:
    return nn.Sequential(nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5))


def _fc2() -> nn.Module:
    return nn.Sequential(nn.Linear(128, 10), nn.LogSoftmax(dim=1))


_LAYERS: tuple[Callable[[], nn.Module], ...] = (_conv1, _conv2, _fc1, _fc2)


@hosted
class Layers(nn.Sequential):
    """Some layers of :class:`examples.digits.Net`: of all together, images ``[N, 1, 28, 28]`` become ``[N, 10]``.

    Args:
        first: The first of them, from 0.
        end: The one after the last.
    """

    def __init__(self, first: int, end: int) -> None:
        super().__init__(*(make() for make in _LAYERS[first:end]))


def cut(owners: int) -> list[tuple[int, int]]:
    """Splits the layers over owners, in order and evenly.

    Of two owners, the first gets the convolutions and the second the linear layers.

    Args:
        owners: Number of owners.

    Returns:
        The first layer of each owner, and the one after its last.

    Raises:
        ValueError: There are more owners than layers, or none.
    """
    if not 1 <= owners <= len(_LAYERS):
        raise ValueError(
            f"the network has {len(_LAYERS)} layers: 1 to {len(_LAYERS)} owners can share it, not {owners}"
        )
    each, more = divmod(len(_LAYERS), owners)
    ends = [each * number + min(number, more) for number in range(owners + 1)]
    return list(pairwise(ends))
