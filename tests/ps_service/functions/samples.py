"""Sample arguments for every listed function of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ps_service.functions.listing import Listed

Call = tuple[tuple[Any, ...], dict[str, Any]]


def floats(*shape: int) -> Tensor:
    """Floating-point numbers in (0, 1)."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1


def ints(high: int, *shape: int) -> Tensor:
    """Integers in [0, high)."""
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(0))


def bools(*shape: int) -> Tensor:
    """Truth values."""
    return floats(*shape) > 0.5


def coo() -> Tensor:
    """A sparse tensor of shape (4, 4)."""
    return torch.sparse_coo_tensor(torch.tensor([[0, 1, 3], [2, 0, 3]]), floats(3), (4, 4), check_invariants=True)


def spd() -> Tensor:
    """A matrix that can be factorized."""
    a = floats(4, 4)
    return a @ a.T + torch.eye(4)


def _args(*args: Any, **kwargs: Any) -> Call:
    return args, kwargs


X = (4, 4)

_TWO = [
    "add",
    "sub",
    "subtract",
    "mul",
    "multiply",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "rsub",
    "logaddexp",
    "logaddexp2",
    "hypot",
    "copysign",
    "heaviside",
    "xlogy",
    "div",
    "divide",
    "true_divide",
    "floor_divide",
    "remainder",
    "fmod",
    "pow",
    "float_power",
    "atan2",
    "arctan2",
    "nextafter",
    "ldexp",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "not_equal",
    "isclose",
    "logical_and",
    "logical_or",
    "logical_xor",
    "equal",
    "allclose",
    "matmul",
    "kron",
    "dist",
    "type_as",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "kl_div",
    "poisson_nll_loss",
    "multilabel_soft_margin_loss",
    "pairwise_distance",
    "cosine_similarity",
    "cdist",
    "polar",
    "complex",
    "copy",
    "isin",
    "__add__",
    "__radd__",
    "__sub__",
    "__rsub__",
    "__mul__",
    "__rmul__",
    "__pow__",
    "__rpow__",
    "__iadd__",
    "__isub__",
    "__imul__",
    "__truediv__",
    "__rtruediv__",
    "__floordiv__",
    "__rfloordiv__",
    "__mod__",
    "__rmod__",
    "__itruediv__",
    "__eq__",
    "__ne__",
    "__lt__",
    "__le__",
    "__gt__",
    "__ge__",
    "__matmul__",
    "__rmatmul__",
]

_ALIKE = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "soft_margin_loss",
    "view_as",
    "reshape_as",
    "expand_as",
]

_INTEGERS = "bitwise_and bitwise_or bitwise_xor gcd lcm bitwise_left_shift bitwise_right_shift __and__ __or__ __xor__ "
_INTEGERS += "__lshift__ __rshift__"

SAMPLES: dict[str, Callable[[], list[Call]]] = {
    **dict.fromkeys(_TWO, lambda: [_args(floats(*X), floats(*X)), _args(floats(4, 1), floats(1, 4))]),
    **dict.fromkeys(_ALIKE, lambda: [_args(floats(*X), floats(*X))]),
    "imag": lambda: [_args(torch.complex(floats(4), floats(4)))],
    "torch.Tensor.float_power_": lambda: [_args(floats(*X).double(), 2.0)],
    **dict.fromkeys(_INTEGERS.split(), lambda: [_args(ints(9, *X) + 1, ints(5, *X))]),
    "bitwise_not": lambda: [_args(ints(9, *X))],
    "__invert__": lambda: [_args(ints(9, *X))],
    "addcmul": lambda: [_args(floats(*X), floats(*X), floats(4))],
    "addcdiv": lambda: [_args(floats(*X), floats(*X), floats(4))],
    "lerp": lambda: [_args(floats(*X), floats(*X), 0.5)],
    "clamp": lambda: [_args(floats(*X), 0.2, 0.5), _args(floats(*X), floats(4), floats(4))],
    "clip": lambda: [_args(floats(*X), 0.2, 0.5)],
    "clamp_min": lambda: [_args(floats(*X), 0.2)],
    "clamp_max": lambda: [_args(floats(*X), 0.2)],
    "masked_fill": lambda: [_args(floats(*X), bools(*X), 0.5)],
    "is_nonzero": lambda: [_args(floats(1))],
    "item": lambda: [_args(floats(1))],
    "norm": lambda: [_args(floats(*X)), _args(floats(*X), 2.0, 0)],
    "logsumexp": lambda: [_args(floats(*X), 0)],
    "sum": lambda: [_args(floats(*X)), _args(ints(5, *X), dim=0), _args(floats(*X), dim=[0, 1])],
    **dict.fromkeys(["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"], lambda: [_args(floats(*X), 1)]),
    "sort": lambda: [_args(floats(*X)), _args(ints(5, *X), dim=0, descending=True)],
    "topk": lambda: [_args(floats(*X), 2)],
    "kthvalue": lambda: [_args(floats(*X), 2)],
    "mm": lambda: [_args(floats(4, 3), floats(3, 5)), _args(ints(5, 4, 3), ints(5, 3, 5))],
    "bmm": lambda: [_args(floats(2, 4, 3), floats(2, 3, 5))],
    "mv": lambda: [_args(floats(4, 3), floats(3))],
    "dot": lambda: [_args(floats(3), floats(3))],
    "vdot": lambda: [_args(floats(3), floats(3))],
    "inner": lambda: [_args(floats(3), floats(3)), _args(floats(4, 3), floats(5, 3))],
    "outer": lambda: [_args(floats(3), floats(4))],
    "ger": lambda: [_args(floats(3), floats(4))],
    "addmm": lambda: [_args(floats(5), floats(4, 3), floats(3, 5)), _args(floats(4, 5), floats(4, 3), floats(3, 5))],
    "addmv": lambda: [_args(floats(4), floats(4, 3), floats(3))],
    "addbmm": lambda: [_args(floats(4, 5), floats(2, 4, 3), floats(2, 3, 5))],
    "baddbmm": lambda: [_args(floats(2, 4, 5), floats(2, 4, 3), floats(2, 3, 5))],
    "addr": lambda: [_args(floats(3, 4), floats(3), floats(4))],
    "einsum": lambda: [_args("ij,jk->ik", floats(4, 3), floats(3, 5)), _args("ii", floats(3, 3))],
    "tensordot": lambda: [_args(floats(4, 3), floats(3, 5), 1), _args(floats(4, 3), floats(4, 3), dims=2)],
    "cross": lambda: [_args(floats(4, 3), floats(4, 3))],
    "chain_matmul": lambda: [_args(floats(4, 3), floats(3, 5), floats(5, 2))],
    "reshape": lambda: [_args(floats(*X), (2, 8)), _args(floats(*X), [-1])],
    "view": lambda: [_args(floats(*X), (2, 8)), _args(floats(*X), -1)],
    "unflatten": lambda: [_args(floats(*X), 0, (2, 2))],
    "unsqueeze": lambda: [_args(floats(*X), 1)],
    **dict.fromkeys(["transpose", "swapaxes", "swapdims", "movedim", "moveaxis"], lambda: [_args(floats(*X), 0, 1)]),
    "permute": lambda: [_args(floats(2, 3, 4), (2, 0, 1))],
    "narrow": lambda: [_args(floats(*X), 0, 1, 2)],
    "select": lambda: [_args(floats(*X), 0, 1)],
    "roll": lambda: [_args(floats(*X), 1), _args(floats(*X), (1, 2), (0, 1))],
    "flip": lambda: [_args(floats(*X), (0,))],
    "rot90": lambda: [_args(floats(*X), 1, (0, 1))],
    "broadcast_to": lambda: [_args(floats(4), (3, 4))],
    "expand": lambda: [_args(floats(4, 1), (4, 3)), _args(floats(4), 3, 4)],
    "repeat": lambda: [_args(floats(4), (3, 2))],
    "tile": lambda: [_args(floats(4), (3, 2))],
    **dict.fromkeys(
        ["cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack", "column_stack", "row_stack"],
        lambda: [_args([floats(*X), floats(*X)])],
    ),
    "block_diag": lambda: [_args(floats(*X), floats(2, 3))],
    "broadcast_tensors": lambda: [_args(floats(4, 1), floats(3))],
    "meshgrid": lambda: [_args(floats(3), floats(4), indexing="ij")],
    "cartesian_prod": lambda: [_args(floats(3), floats(4))],
    "split": lambda: [_args(floats(*X), 2), _args(floats(*X), [1, 3], 1)],
    "split_with_sizes": lambda: [_args(floats(*X), [1, 3])],
    **dict.fromkeys(["chunk", "tensor_split", "hsplit", "vsplit"], lambda: [_args(floats(*X), 2)]),
    "dsplit": lambda: [_args(floats(2, 2, 4), 2)],
    "diag": lambda: [_args(floats(4)), _args(floats(*X), 1)],
    "diagflat": lambda: [_args(floats(4), 1)],
    "diag_embed": lambda: [_args(floats(*X))],
    "repeat_interleave": lambda: [_args(floats(*X), 2), _args(floats(4), ints(3, 4)), _args(floats(*X), ints(3, 4), 1)],
    "index_select": lambda: [_args(floats(*X), 1, ints(4, 6))],
    "gather": lambda: [_args(floats(*X), 1, ints(4, 4, 2))],
    "take": lambda: [_args(floats(*X), ints(16, 5))],
    "take_along_dim": lambda: [_args(floats(*X), ints(4, 4, 2), 1)],
    "masked_select": lambda: [_args(floats(*X), bools(*X))],
    "where": lambda: [_args(bools(*X), floats(*X), floats(4)), _args(bools(*X))],
    "torch.Tensor.where": lambda: [_args(floats(*X), bools(*X), floats(4))],
    "scatter": lambda: [_args(floats(*X), 1, ints(4, 4, 2), floats(4, 2)), _args(floats(*X), 0, ints(4, 4, 2), 0.5)],
    "scatter_add": lambda: [_args(floats(*X), 1, ints(4, 4, 2), floats(4, 2))],
    "index_add": lambda: [_args(floats(*X), 1, ints(4, 6), floats(4, 6)), _args(floats(4), 0, ints(4, 6), floats(6))],
    "index_copy": lambda: [_args(floats(*X), 1, ints(4, 6), floats(4, 6))],
    "index_fill": lambda: [_args(floats(*X), 1, ints(4, 6), 0.5)],
    **dict.fromkeys(["zeros", "ones", "rand", "randn"], lambda: [_args((2, 3)), _args(2, 3, dtype=torch.float64)]),
    "full": lambda: [_args((2, 3), 0.5)],
    "arange": lambda: [_args(5), _args(1, 5, 0.5)],
    "linspace": lambda: [_args(0.0, 1.0, 5)],
    "logspace": lambda: [_args(0.0, 1.0, 5)],
    "eye": lambda: [_args(3), _args(3, 4)],
    "tensor": lambda: [_args([[1.0, 2.0], [3.0, 4.0]])],
    "scalar_tensor": lambda: [_args(2.0)],
    "full_like": lambda: [_args(floats(*X), 0.5)],
    "randint": lambda: [_args(0, 5, (3, 2))],
    "randint_like": lambda: [_args(floats(*X), 5)],
    "randperm": lambda: [_args(7)],
    "threshold": lambda: [_args(floats(*X), 0.5, 0.1)],
    "prelu": lambda: [_args(floats(*X), floats(1))],
    "softmax": lambda: [_args(floats(*X), 1)],
    "softmin": lambda: [_args(floats(*X), 1)],
    "log_softmax": lambda: [_args(floats(*X), 1)],
    "dropout1d": lambda: [_args(floats(2, 3, 4))],
    "dropout2d": lambda: [_args(floats(2, 3, 4, 4))],
    "dropout3d": lambda: [_args(floats(2, 3, 4, 4, 4))],
    "feature_alpha_dropout": lambda: [_args(floats(2, 3, 4), 0.5, True)],
    "dropout": lambda: [_args(floats(*X), 0.5, True)],
    "alpha_dropout": lambda: [_args(floats(*X), 0.5, True)],
    "linear": lambda: [_args(floats(4, 3), floats(5, 3), floats(5))],
    "bilinear": lambda: [_args(floats(4, 3), floats(4, 2), floats(5, 3, 2), floats(5))],
    "conv1d": lambda: [_args(floats(2, 3, 8), floats(4, 3, 3), floats(4), 1, 1)],
    "conv2d": lambda: [
        _args(floats(2, 3, 8, 8), floats(4, 3, 3, 3), floats(4), stride=2, padding=1, dilation=1),
        _args(floats(2, 4, 8, 8), floats(4, 2, 3, 3), None, 1, "same", 1, 2),
    ],
    "conv3d": lambda: [_args(floats(2, 3, 4, 4, 4), floats(4, 3, 3, 3, 3), floats(4), 1, 1)],
    "conv_transpose1d": lambda: [_args(floats(2, 3, 8), floats(3, 4, 3), floats(4), 2, 1, 1)],
    "conv_transpose2d": lambda: [_args(floats(2, 3, 8, 8), floats(3, 4, 3, 3), floats(4), stride=2, padding=1)],
    "conv_transpose3d": lambda: [_args(floats(2, 3, 4, 4, 4), floats(3, 4, 3, 3, 3), floats(4))],
    "torch.nn.functional.unfold": lambda: [_args(floats(2, 3, 8, 8), (3, 3), 1, 1, 2)],
    "torch.Tensor.unfold": lambda: [_args(floats(8), 0, 3, 1)],
    "fold": lambda: [_args(floats(2, 12, 9), (4, 4), (2, 2), 1, 0, 1)],
    "batch_norm": lambda: [_args(floats(4, 3, 5), floats(3), floats(3), floats(3), floats(3), True)],
    "instance_norm": lambda: [_args(floats(4, 3, 5), floats(3), floats(3), floats(3), floats(3))],
    "layer_norm": lambda: [_args(floats(4, 5), (5,), floats(5), floats(5))],
    "rms_norm": lambda: [_args(floats(4, 5), (5,), floats(5))],
    "group_norm": lambda: [_args(floats(4, 6, 5), 3, floats(6), floats(6))],
    "local_response_norm": lambda: [_args(floats(4, 6, 5), 2)],
    **{
        f"{kind}_pool{n}d{more}": (lambda n=n: [_args(floats(2, 3, *[8] * n), 2, 2, 1)])
        for kind, more in (("avg", ""), ("max", ""), ("max", "_with_indices"))
        for n in (1, 2, 3)
    },
    **{
        f"adaptive_{kind}_pool{n}d": (lambda n=n: [_args(floats(2, 3, *[8] * n), [3] * n)])
        for kind in ("avg", "max")
        for n in (1, 2, 3)
    },
    **{f"lp_pool{n}d": (lambda n=n: [_args(floats(2, 3, *[8] * n), 2.0, 2)]) for n in (1, 2, 3)},
    **{
        f"max_unpool{n}d": (lambda n=n: [_args(floats(2, 3, *[4] * n), ints(4**n, 2, 3, *[4] * n), 2)])
        for n in (1, 2, 3)
    },
    "embedding": lambda: [_args(ints(5, 3, 2), floats(5, 4)), _args(ints(5, 3), floats(5, 4), 0, 1.0)],
    "embedding_bag": lambda: [
        _args(ints(5, 6), floats(5, 4), torch.tensor([0, 2, 4])),
        _args(ints(5, 3, 2), floats(5, 4), mode="sum", per_sample_weights=floats(3, 2)),
        _args(ints(5, 6), floats(5, 4), torch.tensor([0, 2, 6]), mode="max", include_last_offset=True),
    ],
    "one_hot": lambda: [_args(ints(5, 6)), _args(ints(5, 6), 7)],
    "nll_loss": lambda: [_args(floats(4, 3), ints(3, 4)), _args(floats(4, 3, 2, 2), ints(3, 4, 2, 2), floats(3))],
    "cross_entropy": lambda: [
        _args(floats(4, 3), ints(3, 4), floats(3), label_smoothing=0.1),
        _args(floats(4, 3, 2), ints(3, 4, 2)),
        _args(floats(4, 3), floats(4, 3)),
    ],
    "gaussian_nll_loss": lambda: [_args(floats(*X), floats(*X), floats(*X))],
    "hinge_embedding_loss": lambda: [_args(floats(*X), torch.ones(X))],
    "cosine_embedding_loss": lambda: [_args(floats(*X), floats(*X), torch.ones(4))],
    "margin_ranking_loss": lambda: [_args(floats(4), floats(4), torch.ones(4))],
    "triplet_margin_loss": lambda: [_args(floats(*X), floats(*X), floats(*X))],
    "multi_margin_loss": lambda: [_args(floats(4, 3), ints(3, 4))],
    "multilabel_margin_loss": lambda: [_args(floats(2, 4), torch.tensor([[3, 0, -1, 1], [0, -1, 1, 1]]))],
    "ctc_loss": lambda: [
        _args(floats(10, 2, 5).log_softmax(2), ints(4, 2, 3) + 1, torch.tensor([10, 9]), torch.tensor([3, 2])),
        _args(floats(10, 2, 5).log_softmax(2), ints(4, 5) + 1, (10, 9), (3, 2)),
    ],
    "pdist": lambda: [_args(floats(5, 3))],
    "cdist": lambda: [_args(floats(5, 3), floats(4, 3)), _args(floats(2, 5, 3), floats(2, 4, 3), 1.0)],
    **dict.fromkeys(
        ("interpolate", "upsample"),
        lambda: [
            _args(floats(2, 3, 4, 4), scale_factor=2.0, mode="nearest"),
            _args(floats(2, 3, 4, 4), (7, 9), None, "bilinear", True),
            _args(floats(2, 3, 4, 4), size=6, mode="bicubic"),
            _args(floats(2, 3, 4), size=6, mode="linear"),
            _args(floats(2, 3, 4, 4, 4), 6, None, "trilinear"),
            _args(floats(2, 3, 4, 4), size=6, mode="area"),
        ],
    ),
    "pad": lambda: [
        _args(floats(2, 3, 4), (1, 2)),
        *[_args(floats(2, 3, 4, 4), (1, 1, 2, 0), mode=mode) for mode in ("reflect", "replicate", "circular")],
    ],
    "pixel_shuffle": lambda: [_args(floats(2, 8, 4, 4), 2)],
    "pixel_unshuffle": lambda: [_args(floats(2, 3, 4, 4), 2)],
    "channel_shuffle": lambda: [_args(floats(2, 4, 3, 3), 2)],
    "grid_sample": lambda: [
        _args(floats(2, 3, 4, 4), floats(2, 5, 6, 2) * 2 - 1, align_corners=False),
        _args(floats(2, 3, 4, 4, 4), floats(2, 5, 6, 2, 3), "nearest", "reflection", True),
        _args(floats(2, 3, 4, 4), floats(2, 5, 6, 2), "bicubic", "border", True),
    ],
    "affine_grid": lambda: [_args(floats(2, 2, 3), (2, 3, 4, 4), align_corners=False)],
    "scaled_dot_product_attention": lambda: [
        _args(floats(2, 4, 5, 8), floats(2, 4, 6, 8), floats(2, 4, 6, 8)),
        _args(floats(2, 4, 5, 8), floats(2, 4, 5, 8), floats(2, 4, 5, 8), None, 0.0, True),
        _args(floats(2, 5, 8), floats(2, 6, 8), floats(2, 6, 3), bools(5, 6)),
    ],
    "multi_head_attention_forward": lambda: [
        _args(
            *(floats(5, 2, 8), floats(6, 2, 8), floats(6, 2, 8), 8, 2, floats(24, 8), floats(24), None, None, False),
            *(0.0, floats(8, 8), floats(8)),
        )
    ],
    "to": lambda: [
        _args(floats(*X), torch.float64),
        _args(floats(*X), ints(5, 2)),
        _args(floats(*X), dtype=torch.int8),
    ],
    "sum_to_size": lambda: [_args(floats(*X), (1, 4))],
    "stride": lambda: [_args(floats(*X)), _args(floats(*X), 0)],
    "size": lambda: [_args(floats(*X)), _args(floats(*X), 0)],
    "new_full": lambda: [_args(floats(*X), (2, 3), 0.5)],
    "new_ones": lambda: [_args(floats(*X), (2, 3))],
    "new_zeros": lambda: [_args(floats(*X), (2, 3))],
    "new_tensor": lambda: [_args(floats(*X), [1.0, 2.0])],
    "coalesce": lambda: [_args(coo())],
    "is_coalesced": lambda: [_args(coo())],
    "to_dense": lambda: [_args(coo()), _args(floats(*X))],
    "fill": lambda: [_args(floats(*X), 0.5)],
    "quantile": lambda: [_args(floats(*X), 0.5), _args(floats(*X), floats(3), 0)],
    "nanquantile": lambda: [_args(floats(*X), 0.5)],
    "histc": lambda: [_args(floats(*X), 7)],
    "bincount": lambda: [_args(ints(5, 9)), _args(ints(5, 9), floats(9), 8)],
    "searchsorted": lambda: [_args(floats(9).sort().values, floats(*X))],
    "bucketize": lambda: [_args(floats(*X), floats(9).sort().values)],
    "renorm": lambda: [_args(floats(*X), 2.0, 0, 1.0)],
    "diff": lambda: [_args(floats(*X)), _args(floats(*X), 2)],
    "matrix_power": lambda: [_args(spd(), 5), _args(spd(), -2)],
    **dict.fromkeys(["det", "logdet", "slogdet", "inverse", "cholesky", "qr", "matrix_exp"], lambda: [_args(spd())]),
    "select_scatter": lambda: [_args(floats(*X), floats(4), 0, 1)],
    "slice_scatter": lambda: [_args(floats(*X), floats(2, 4), 0, 1, 3)],
    "diagonal_scatter": lambda: [_args(floats(*X), floats(4))],
    "tril_indices": lambda: [_args(3, 4, 1)],
    "triu_indices": lambda: [_args(3, 4, -1)],
    "vander": lambda: [_args(floats(4), 3)],
    "normal": lambda: [_args(floats(*X), floats(*X)), _args(0.0, 1.0, (2, 3))],
    "multinomial": lambda: [_args(floats(*X), 2), _args(floats(4), 9, True)],
    "sparse_coo_tensor": lambda: [_args(torch.tensor([[0, 1], [1, 0]]), floats(2), (2, 2))],
    **dict.fromkeys(
        ["hann_window", "hamming_window", "bartlett_window", "blackman_window", "kaiser_window"], lambda: [_args(7)]
    ),
    "view_as_complex": lambda: [_args(floats(4, 2))],
    "view_as_real": lambda: [_args(torch.complex(floats(4), floats(4)))],
    "complex": lambda: [_args(floats(4), floats(4))],
    "cov": lambda: [_args(floats(*X))],
}

_SPARSE: dict[str, Callable[[], list[Call]]] = {
    **dict.fromkeys(["add", "sub", "mul", "__add__", "__sub__", "__mul__", "__rmul__"], lambda: [_args(coo(), coo())]),
    **dict.fromkeys(["matmul", "mm", "__matmul__"], lambda: [_args(coo(), floats(4, 3))]),
    "transpose": lambda: [_args(coo(), 0, 1)],
}


def samples(entry: Listed) -> list[Call]:
    """Calls that the function takes."""
    made = SAMPLES.get(entry.name) or SAMPLES.get(entry.short)
    found = made() if made is not None else [_args(floats(*X))]
    if entry.writes:
        return found[:1]  # the others would not fit into the first argument
    if entry.takes_sparse and entry.short != "sparse_coo_tensor":
        sparse = _SPARSE.get(entry.short)
        found += sparse() if sparse is not None else [_args(coo())]
    return found
