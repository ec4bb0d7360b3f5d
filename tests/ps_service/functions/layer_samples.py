"""Samples of torch's layers: settings that they take, and inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from tests.ps_service.functions.samples import Call, bools, floats, ints


class Layer(NamedTuple):
    """A class of layers, the settings of one, and what it is called with."""

    cls: type[nn.Module]
    settings: Call
    inputs: Callable[[], tuple[Any, ...]]


def _layer(cls: type[nn.Module], inputs: Callable[[], tuple[Any, ...]], *args: Any, **kwargs: Any) -> Layer:
    return Layer(cls, (args, kwargs), inputs)


def _images(channels: int, *size: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (floats(2, channels, *size),)


def _two(*shape: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (floats(*shape), floats(*shape))


_ALL = [
    _layer(nn.Linear, lambda: (floats(4, 3),), 3, 2),
    _layer(nn.Bilinear, lambda: (floats(4, 3), floats(4, 2)), 3, 2, 5),
    _layer(nn.Conv1d, _images(3, 8), 3, 4, 3, 1, 1),
    _layer(nn.Conv2d, _images(4, 8, 8), 4, 6, (3, 2), stride=2, padding=(1, 1), dilation=1, groups=2),
    _layer(nn.Conv2d, _images(4, 8, 8), 4, 6, 3, 1, 1, padding_mode="circular"),
    _layer(nn.Conv3d, _images(3, 4, 4, 4), 3, 4, 2, 1, 1),
    _layer(nn.ConvTranspose1d, _images(3, 8), 3, 4, 3, 2, 1, 1),
    _layer(nn.ConvTranspose2d, _images(4, 8, 8), 4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
    _layer(nn.ConvTranspose3d, _images(3, 4, 4, 4), 3, 4, 2),
    _layer(nn.Embedding, lambda: (ints(7, 3, 2),), 7, 4, padding_idx=0, max_norm=1.0),
    _layer(nn.EmbeddingBag, lambda: (ints(7, 6), torch.tensor([0, 2, 4])), 7, 4, mode="sum"),
    _layer(nn.EmbeddingBag, lambda: (ints(7, 3, 2),), 7, 4, mode="max", sparse=False),
    _layer(nn.EmbeddingBag, lambda: (ints(7, 6), torch.tensor([0, 2, 6])), 7, 4, include_last_offset=True, sparse=True),
    _layer(nn.RNN, lambda: (floats(5, 2, 3),), 3, 4, 2),
    _layer(nn.LSTM, lambda: (floats(5, 2, 3),), 3, 4, 2, bidirectional=True, proj_size=2),
    _layer(nn.LSTM, lambda: (floats(5, 2, 3), (floats(1, 2, 4), floats(1, 2, 4))), 3, 4),
    _layer(nn.GRU, lambda: (floats(5, 2, 3),), 3, 4, batch_first=True),
    _layer(nn.RNNCell, lambda: (floats(2, 3),), 3, 4),
    _layer(nn.LSTMCell, lambda: (floats(2, 3),), 3, 4),
    _layer(nn.GRUCell, lambda: (floats(2, 3), floats(2, 4)), 3, 4),
    _layer(nn.MultiheadAttention, lambda: (floats(5, 2, 8), floats(6, 2, 8), floats(6, 2, 8)), 8, 2),
    _layer(nn.Transformer, lambda: (floats(5, 2, 8), floats(6, 2, 8)), 8, 2, 1, 1, dim_feedforward=9),
    _layer(nn.TransformerEncoderLayer, lambda: (floats(5, 2, 8), bools(5, 5)), 8, 2, 9, batch_first=True),
    _layer(nn.TransformerDecoderLayer, lambda: (floats(5, 2, 8), floats(6, 2, 8)), 8, 2, 9),
    *[_layer(cls, _images(3, 8), 2, 2, 1) for cls in (nn.AvgPool1d, nn.MaxPool1d)],
    *[_layer(cls, _images(3, 8, 8), 2, 2, 1) for cls in (nn.AvgPool2d, nn.MaxPool2d)],
    *[_layer(cls, _images(3, 8, 8, 8), 2, 2, 1) for cls in (nn.AvgPool3d, nn.MaxPool3d)],
    _layer(nn.MaxPool2d, _images(3, 8, 8), 3, stride=2, dilation=2, return_indices=True, ceil_mode=True),
    *[_layer(cls, _images(3, 8), 3) for cls in (nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d)],
    *[_layer(cls, _images(3, 8, 8), (3, 2)) for cls in (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)],
    *[_layer(cls, _images(3, 8, 8, 8), (3, 2, 2)) for cls in (nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool3d)],
    _layer(nn.FractionalMaxPool2d, _images(3, 8, 8), 2, output_size=3),
    _layer(nn.FractionalMaxPool3d, _images(3, 8, 8, 8), 2, output_ratio=0.5),
    _layer(nn.LPPool1d, _images(3, 8), 2.0, 2),
    _layer(nn.LPPool2d, _images(3, 8, 8), 2.0, 2),
    _layer(nn.LPPool3d, _images(3, 8, 8, 8), 2.0, 2),
    _layer(nn.MaxUnpool1d, lambda: (floats(2, 3, 4), ints(4, 2, 3, 4)), 2),
    _layer(nn.MaxUnpool2d, lambda: (floats(2, 3, 4, 4), ints(16, 2, 3, 4, 4)), 2, 2),
    _layer(nn.MaxUnpool3d, lambda: (floats(2, 3, 4, 4, 4), ints(64, 2, 3, 4, 4, 4)), 2),
    _layer(nn.Fold, lambda: (floats(2, 12, 9),), (4, 4), (2, 2), 1, 0, 1),
    _layer(nn.Unfold, _images(3, 8, 8), (3, 3), 1, 1, 2),
    _layer(nn.Upsample, _images(3, 8, 8), scale_factor=2.0),
    _layer(nn.Upsample, _images(3, 8, 8), size=(5, 9), mode="bilinear"),
    _layer(nn.UpsamplingNearest2d, _images(3, 8, 8), scale_factor=2),
    *[
        _layer(cls, _images(3, 8), 2)
        for cls in (nn.ReflectionPad1d, nn.ReplicationPad1d, nn.ZeroPad1d, nn.CircularPad1d)
    ],
    *[_layer(cls, _images(3, 8, 8), (1, 2, 0, 1)) for cls in (nn.ReflectionPad2d, nn.ReplicationPad2d, nn.ZeroPad2d)],
    *[_layer(cls, _images(3, 4, 4, 4), 1) for cls in (nn.ReflectionPad3d, nn.ReplicationPad3d, nn.ZeroPad3d)],
    _layer(nn.CircularPad2d, _images(3, 4, 4), 1),
    _layer(nn.ConstantPad1d, _images(3, 8), 2, 0.5),
    _layer(nn.PixelShuffle, _images(8, 4, 4), 2),
    _layer(nn.PixelUnshuffle, _images(2, 4, 4), 2),
    _layer(nn.ChannelShuffle, _images(4, 4, 4), 2),
    _layer(nn.BatchNorm1d, _images(3, 5), 3),
    _layer(nn.BatchNorm2d, _images(3, 5, 5), 3, 1e-5, None, True, True),
    _layer(nn.InstanceNorm1d, _images(3, 5), 3, affine=True, track_running_stats=True),
    _layer(nn.LayerNorm, lambda: (floats(4, 5),), 5),
    _layer(nn.RMSNorm, lambda: (floats(4, 5),), (5,)),
    _layer(nn.GroupNorm, _images(6, 5), 3, 6),
    _layer(nn.LocalResponseNorm, _images(6, 5), 2),
    _layer(nn.CrossMapLRN2d, _images(6, 5, 5), 2),
    _layer(nn.Softmax, lambda: (floats(4, 5),), 1),
    _layer(nn.Threshold, lambda: (floats(4, 5),), 0.1, 0.2),
    _layer(nn.PReLU, _images(3, 5), 3),
    _layer(nn.GLU, lambda: (floats(4, 6),), -1),
    _layer(nn.RReLU, lambda: (floats(4, 6),), 0.1, 0.3),
    _layer(nn.Dropout, lambda: (floats(4, 6),), 0.5),
    _layer(nn.Dropout2d, _images(3, 5, 5), 0.5),
    _layer(nn.Flatten, _images(3, 5), 1, 2),
    _layer(nn.Unflatten, lambda: (floats(4, 6),), 1, (2, 3)),
    _layer(nn.CosineSimilarity, _two(4, 6), 1),
    _layer(nn.PairwiseDistance, _two(4, 6), 2.0),
    _layer(nn.AdaptiveLogSoftmaxWithLoss, lambda: (floats(4, 8), ints(9, 4)), 8, 9, [3, 5], div_value=2.0),
    _layer(nn.NLLLoss, lambda: (floats(4, 3), ints(3, 4)), floats(3), ignore_index=1),
    _layer(nn.NLLLoss, lambda: (floats(4, 3, 2, 2), ints(3, 4, 2, 2))),
    _layer(nn.CrossEntropyLoss, lambda: (floats(4, 3), ints(3, 4)), floats(3), label_smoothing=0.1),
    _layer(
        nn.CTCLoss,
        lambda: (floats(10, 2, 5).log_softmax(2), ints(4, 2, 3) + 1, torch.tensor([10, 9]), torch.tensor([3, 2])),
        0,
    ),
    _layer(
        nn.CTCLoss,
        lambda: (floats(10, 2, 5).log_softmax(2), ints(4, 5) + 1, torch.tensor([10, 9]), torch.tensor([3, 2])),
        blank=4,
        zero_infinity=True,
    ),
    _layer(nn.MultiMarginLoss, lambda: (floats(4, 3), ints(3, 4)), 1, 1.0, floats(3)),
    _layer(nn.MultiLabelMarginLoss, lambda: (floats(2, 4), torch.tensor([[3, 0, -1, 1], [0, -1, 1, 1]]))),
    _layer(nn.BCELoss, _two(4, 6), floats(6)),
    _layer(nn.BCEWithLogitsLoss, _two(4, 6)),
    _layer(nn.KLDivLoss, _two(4, 6), reduction="batchmean"),
    _layer(nn.TripletMarginLoss, lambda: (floats(4, 6), floats(4, 6), floats(4, 6))),
    _layer(nn.MSELoss, _two(4, 6)),
    _layer(nn.SmoothL1Loss, _two(4, 6), beta=0.5),
]

LAYERS = {f"torch.nn.{layer.cls.__name__} {number}": layer for number, layer in enumerate(_ALL)}
