"""Which calls of torch's layers are harmless, so that they need not run under `Guard`.

Most are proved by one multiplication, with a bound on how much a layer can grow its input, computed from its settings;
a few by a look at the arguments. What is not proved harmless runs under `Guard`, which reports what is wrong with it.
"""

# mypy: disable-error-code=no-any-return
# Settings of modules have no types.

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

from ps_service.functions import dtypes
from ps_service.functions.layer_sizes import MAX_STEP

_PLAIN: Final = dtypes.FLOATING | {torch.int64, torch.int32}
_INDEX_DTYPES: Final = (torch.int64, torch.int32)


class LayerCheck:
    """Tells whether a call of one module is harmless, which consists of nothing but modules of torch."""

    __slots__ = ("_growth", "_module", "_proof")

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._proof = _PROOFS.get(type(module))
        self._growth = _growth(module)

    def passes(self, args: tuple[Any, ...], kwargs: dict[str, Any], limit: int) -> bool:
        """Whether a call is proved harmless: no result in it can have more than `limit` bytes."""
        if self._proof is not None:
            try:
                return self._proof(self._module, limit, *args, **kwargs)
            except TypeError:  # the call does not fit the layer
                return False
        if kwargs or self._growth is math.inf:
            return False
        elements = 0
        # Recurrent layers take their hidden state as a tuple.
        for value in (each for arg in args for each in (arg if type(arg) is tuple else (arg,))):
            if type(value) is not Tensor or value.layout is not torch.strided or value.dtype not in _PLAIN:
                return False
            elements += value.numel()
        return elements > 0 and elements * self._growth * 16 <= limit


# Growth


def _growth(module: nn.Module) -> float:
    """Upper bound on elements of any result inside a module per element of its input; infinity if unknown."""
    if type(module) is nn.Sequential:
        factor = most = 1.0
        for child in module.children():
            factor *= _growth(child)
            most = max(most, factor)
        return most
    rule = _RULES.get(type(module))
    try:
        return max(1.0, rule(module)) if rule is not None else math.inf
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        return math.inf


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


def _recurrent(module: Any) -> float:
    directions = 2 if module.bidirectional else 1
    # Four gates, and what is saved of them for backward, layer by layer.
    return directions * _cell(module) * directions


def _cell(module: Any) -> float:
    return 16.0 * max(1.0, module.hidden_size / module.input_size)


_SAME: Final = (
    *(nn.Identity, nn.ReLU, nn.ReLU6, nn.ELU, nn.SELU, nn.CELU, nn.LeakyReLU, nn.PReLU, nn.GELU, nn.LogSigmoid),
    *(nn.Hardshrink, nn.Tanhshrink, nn.Softsign, nn.Softplus, nn.Softmin, nn.Softmax, nn.Softshrink, nn.LogSoftmax),
    *(nn.Hardsigmoid, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardtanh, nn.Threshold, nn.Tanh, nn.Sigmoid, nn.Flatten),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm),
)

_RULES: Final[dict[type[nn.Module], Callable[[Any], float]]] = {
    **dict.fromkeys(_SAME, lambda module: 1.0),
    nn.Linear: lambda module: module.out_features / module.in_features,
    nn.Embedding: lambda module: module.embedding_dim,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _convolution),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), _transposed),
    **dict.fromkeys((nn.RNN, nn.LSTM, nn.GRU), _recurrent),
    **dict.fromkeys((nn.RNNCell, nn.LSTMCell, nn.GRUCell), _cell),
}

# Arguments


def _bags(module: Any, limit: int, /, input: Any, offsets: Any = None, per_sample_weights: Any = None) -> bool:
    """Whether every index names a row, and the offsets ascend within the indices."""
    if not _is_dense(input) or input.dtype not in _INDEX_DTYPES or not input.numel():
        return False
    if not _lie_in(input, module.num_embeddings) or input.numel() * module.embedding_dim * 16 > limit:
        return False
    weights = per_sample_weights
    if weights is not None and not (_is_dense(weights) and weights.shape == input.shape):
        return False
    if input.dim() == 2:
        return offsets is None
    if input.dim() != 1 or not _is_dense(offsets) or offsets.dtype != input.dtype or offsets.dim() != 1:
        return False
    begins, count = offsets.detach().numpy(), input.numel()
    if not len(begins) or begins[0] or begins[-1] > count or (module.include_last_offset and begins[-1] != count):
        return False
    return not bool((begins[1:] < begins[:-1]).any()) and len(begins) * module.embedding_dim * 16 <= limit


def _class_loss(module: Any, limit: int, /, input: Any, target: Any) -> bool:
    """Whether the scores are (rows, classes) and the target holds one existing class per row."""
    if not _is_dense(input) or not _is_dense(target) or input.dtype not in dtypes.FLOATING:
        return False
    if input.dim() != 2 or target.dtype is not torch.int64 or target.shape != input.shape[:1]:
        return False
    return bool(input.numel()) and input.numel() * 16 <= limit and _lie_in(target, input.shape[1])


def _is_dense(value: Any) -> bool:
    return type(value) is Tensor and value.layout is torch.strided and value.is_cpu


def _lie_in(integers: Tensor, high: int) -> bool:
    numbers = integers.detach().numpy()
    return bool(numbers.min() >= 0 and numbers.max() < high)


_PROOFS: Final[dict[type[nn.Module], Callable[..., bool]]] = {
    nn.EmbeddingBag: _bags,
    nn.CrossEntropyLoss: _class_loss,
    nn.NLLLoss: _class_loss,
}
"""For some layers a check that takes the layer, the most bytes of one result, and the arguments of the call."""
