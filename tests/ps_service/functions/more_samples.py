"""Sample arguments for the functions of `torch.linalg` and of Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.ps_service.functions.sample_tensors import floats, spd

Call = tuple[tuple[Any, ...], dict[str, Any]]


def _args(*args: Any, **kwargs: Any) -> Call:
    return args, kwargs


_OF_A_MATRIX = (
    "det slogdet inv inv_ex cholesky cholesky_ex qr eig eigvals eigh eigvalsh svd svdvals pinv matrix_rank matrix_exp "
    "cond lu lu_factor"
)

LINALG: dict[str, Callable[[], list[Call]]] = {
    **{f"torch.linalg.{name}": lambda: [_args(spd())] for name in _OF_A_MATRIX.split()},
    **{f"torch.linalg.{name}": lambda: [_args(spd(), spd())] for name in ("solve", "solve_ex", "lstsq")},
    "torch.linalg.solve_triangular": lambda: [_args(floats(3, 3).triu() + 1, floats(3, 2), upper=True)],
    "torch.linalg.matrix_power": lambda: [_args(spd(), 3), _args(spd(), -2)],
    "torch.linalg.tensorinv": lambda: [_args(spd(), 1)],
    "torch.linalg.tensorsolve": lambda: [_args(spd(), floats(spd().shape[0]))],
    "torch.linalg.norm": lambda: [
        _args(floats(4)),
        _args(floats(4, 3), 2),
        _args(floats(4, 3), "nuc"),
        _args(spd(), 1),
    ],
    "torch.linalg.vector_norm": lambda: [_args(floats(4, 3), 3.0), _args(floats(4, 3), 2, 1)],
    "torch.linalg.matrix_norm": lambda: [_args(floats(4, 3)), _args(floats(2, 4, 3), 2), _args(floats(4, 3), "nuc")],
    "torch.linalg.vecdot": lambda: [_args(floats(4, 3), floats(4, 3))],
    "torch.linalg.matmul": lambda: [_args(floats(4, 3), floats(3, 2))],
    "torch.linalg.cross": lambda: [_args(floats(4, 3), floats(4, 3))],
    "torch.linalg.diagonal": lambda: [_args(floats(4, 3)), _args(floats(4, 3), offset=1)],
    "torch.linalg.multi_dot": lambda: [_args([floats(4, 3), floats(3, 5), floats(5, 2)])],
}

BUILTINS: dict[str, Callable[[], list[Call]]] = {
    "builtins.abs": lambda: [_args(-3), _args(floats(3))],
    "builtins.all": lambda: [_args([True, 0])],
    "builtins.any": lambda: [_args([False, 1.0])],
    "builtins.divmod": lambda: [_args(7, 2), _args(7.5, 2)],
    "builtins.len": lambda: [_args("text"), _args([1, 2]), _args(floats(3, 2))],
    "builtins.max": lambda: [_args(1, 2, 3), _args([1.0, 2.0]), _args([], default=4)],
    "builtins.min": lambda: [_args(1, 2, 3), _args([1.0, 2.0])],
    "builtins.round": lambda: [_args(2.5), _args(2.345, 2), _args(1234, -2)],
    "builtins.sorted": lambda: [_args([3, 1, 2]), _args(["b", "a"], reverse=True)],
    "builtins.sum": lambda: [_args([1, 2, 3]), _args([floats(3), floats(3)]), _args([1.5], 2)],
}
