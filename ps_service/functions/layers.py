"""Bounds on the result size of a torch layer relative to its input, computed from the layer's settings.

With these bounds most calls are proved harmless by one multiplication. Only the others run under `Guard`.
"""

# mypy: disable-error-code=no-any-return
# Settings of modules have no types.

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import Tensor, nn

from ps_service.functions import dtypes
from ps_service.functions.checked_layers import proof_for
from ps_service.functions.layer_sizes import MAX_STEP

Growth = Callable[[Any], float]


class LayerCheck:
    """Tells whether a call of one layer is harmless.

    Args:
        module: A module that consists of nothing but modules of torch.
    """

    __slots__ = ("_growth", "_module", "_proof")

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._proof = proof_for(module)
        self._growth = growth(module)

    def passes(self, args: tuple[Any, ...], kwargs: dict[str, Any], limit: int) -> bool:
        """Whether a call is proved harmless, so that it needs no guard.

        Args:
            args: The positional arguments of the call.
            kwargs: By name.
            limit: Most bytes that one result may have.
        """
        if self._proof is not None:
            return self._proof(self._module, args, kwargs, limit)
        return is_harmless(self._growth, args, kwargs, limit)


def growth(module: nn.Module) -> float:
    """Upper bound on elements of any result inside a module per element of its input; infinity if unknown.

    Args:
        module: A module that consists of nothing but modules of torch.
    """
    if type(module) is nn.Sequential:
        factor = most = 1.0
        for child in module.children():
            factor *= growth(child)
            most = max(most, factor)
        return most
    rule = _RULES.get(type(module))
    try:
        return max(1.0, rule(module)) if rule is not None else math.inf
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        return math.inf


def is_harmless(factor: float, args: Iterable[Any], kwargs: dict[str, Any], limit: int) -> bool:
    """Whether a call of a layer is harmless for any values of its arguments.

    Args:
        factor: The layer's `growth`.
        args: The positional arguments of the call.
        kwargs: By name.
        limit: Most bytes that one result may have.
    """
    if kwargs or factor is math.inf:
        return False
    elements = 0
    # Recurrent layers take their hidden state as a tuple.
    for value in (each for arg in args for each in (arg if type(arg) is tuple else (arg,))):
        if type(value) is not Tensor or value.layout is not torch.strided or value.dtype not in _PLAIN:
            return False
        elements += value.numel()
    return elements > 0 and elements * factor * 16 <= limit


_PLAIN: Final = dtypes.FLOATING | {torch.int64, torch.int32}


def _same(module: Any) -> float:
    return 1.0


def _linear(module: Any) -> float:
    return float(module.out_features / module.in_features)


def _convolution(module: Any) -> float:
    if min((*module.stride, *module.dilation, module.groups)) < 1 or isinstance(module.padding, str):
        return math.inf
    if max((*module.stride, *module.dilation, *module.padding)) > MAX_STEP:
        return math.inf
    pads = (
        module._reversed_padding_repeated_twice if module.padding_mode != "zeros" else [2 * p for p in module.padding]
    )
    places = math.prod(1 + 2 * max(0, each) for each in pads)
    kernel = math.prod(module.kernel_size)
    # Its result, and the columns of all windows.
    return float((module.out_channels / module.in_channels + kernel) * places)


def _transposed(module: Any) -> float:
    reach = math.prod(
        s + d * (k - 1) + o + 1
        for s, d, k, o in zip(module.stride, module.dilation, module.kernel_size, module.output_padding, strict=True)
    )
    settings = (*module.stride, *module.dilation, *module.padding, *module.output_padding)
    if min(settings) < 0 or module.groups < 1 or max(settings) > MAX_STEP:
        return math.inf
    return float((module.out_channels / module.in_channels + 1) * reach)


def _embedding(module: Any) -> float:
    return float(module.embedding_dim)


def _recurrent(module: Any) -> float:
    directions = 2 if module.bidirectional else 1
    # Four gates, and what is saved of them for backward, layer by layer.
    return 16.0 * directions * max(1.0, module.hidden_size / module.input_size) * directions


def _cell(module: Any) -> float:
    return 16.0 * max(1.0, module.hidden_size / module.input_size)


_SAME: Final = (
    *(nn.Identity, nn.ReLU, nn.ReLU6, nn.ELU, nn.SELU, nn.CELU, nn.LeakyReLU, nn.PReLU, nn.GELU, nn.LogSigmoid),
    *(nn.Hardshrink, nn.Tanhshrink, nn.Softsign, nn.Softplus, nn.Softmin, nn.Softmax, nn.Softshrink, nn.LogSoftmax),
    *(nn.Hardsigmoid, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardtanh, nn.Threshold, nn.Tanh, nn.Sigmoid, nn.Flatten),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm),
)

_RULES: Final[dict[type[nn.Module], Growth]] = {
    **dict.fromkeys(_SAME, _same),
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _convolution),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), _transposed),
    **dict.fromkeys((nn.RNN, nn.LSTM, nn.GRU), _recurrent),
    **dict.fromkeys((nn.RNNCell, nn.LSTMCell, nn.GRUCell), _cell),
}
