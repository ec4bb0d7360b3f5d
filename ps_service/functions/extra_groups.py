"""The groups that the level `all` adds."""

from __future__ import annotations

from typing import Final

from ps_service.functions.group import Group, Level


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_LINALG: Final = (
    "det slogdet inv inv_ex cholesky cholesky_ex qr eig eigvals eigh eigvalsh svd svdvals solve solve_ex "
    "solve_triangular lstsq pinv matrix_rank matrix_power matrix_exp cond lu lu_factor tensorinv tensorsolve"
)

MORE: Final = (
    Group(
        "more elementary functions",
        Level.ALL,
        "Work element by element; the result has the shape to which the arguments broadcast.",
        _names("nextafter ldexp arctanh arcsinh arccosh isin polar complex view_as_real view_as_complex resolve_conj"),
        grows=False,
    ),
    Group(
        "shifts",
        Level.ALL,
        "Element by element; the amounts must lie between 0 and the number of bits.",
        _names("bitwise_left_shift bitwise_right_shift"),
        operators=_names("__lshift__ __rshift__"),
        checks={name: "shift" for name in _names("bitwise_left_shift bitwise_right_shift __lshift__ __rshift__")},
    ),
    Group(
        "integers",
        Level.ALL,
        "Element by element; the smallest number of each integer type is refused.",
        _names("gcd lcm"),
        checks={"gcd": "no_smallest", "lcm": "no_smallest"},
    ),
    Group(
        "statistics",
        Level.ALL,
        "The result is bounded by the argument, or by the number of bins, which is held against the limit.",
        _names(
            "quantile nanquantile histc bincount unique unique_consecutive msort searchsorted bucketize renorm cov "
            "corrcoef diff cumulative_trapezoid trapezoid"
        ),
        checks={"bincount": "bincount", "histc": "bins"},
    ),
    Group(
        "linear algebra",
        Level.ALL,
        "Of square or tall matrices with finite elements; the result is bounded by the argument.",
        _names("matrix_power det logdet slogdet inverse cholesky qr matrix_exp"),
        checks={
            **{name: "finite" for name in _names("det logdet slogdet inverse cholesky qr matrix_exp")},
            "matrix_power": "matrix_power",
        },
    ),
    Group(
        "linear algebra of torch.linalg",
        Level.ALL,
        "Of matrices with finite elements, up to 4,096 rows and columns; the result is bounded by the argument. "
        "Singular values and eigenvalues may differ from those of a local call in their last digit.",
        _names(_LINALG),
        only="torch.linalg",
        checks={**dict.fromkeys(_names(_LINALG), "finite"), "matrix_power": "matrix_power"},
    ),
    Group(
        "more of shape",
        Level.ALL,
        "The size of the result is computed before it is made.",
        _names("select_scatter slice_scatter diagonal_scatter tril_indices triu_indices vander"),
    ),
    Group(
        "more random tensors",
        Level.ALL,
        "They draw from the owner's generator; the size of the result is computed before it is made.",
        _names("normal multinomial"),
    ),
    Group(
        "sparse tensors",
        Level.ALL,
        "Every index is held against the shape, because torch's own check is always switched on.",
        _names("sparse_coo_tensor"),
        only="torch",
        checks={"sparse_coo_tensor": "sparse"},
        sparse=frozenset({"sparse_coo_tensor"}),
    ),
    Group(
        "windows",
        Level.ALL,
        "The size is the first argument, and held against the limit.",
        _names("hann_window hamming_window bartlett_window blackman_window kaiser_window"),
    ),
)
