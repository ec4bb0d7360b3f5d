"""Checks of a torch function's arguments before it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ps_service.functions import dtypes
from ps_service.functions.guard import check_device, check_tensor
from ps_service.functions.sizes import MAX_PIECES, items
from ps_service.functions.values import no_smallest, shifts
from ps_wire.errors import InvalidArgumentError, NotAllowedError, TooLargeError

MAX_LISTED: Final = 65_536
"""Most elements `tolist` may turn into Python numbers: the conversion holds the GIL, so other requests wait."""

_MAX_TEXT: Final = 256
_MAX_CONTRACTED: Final = 64
_MAX_OPERANDS: Final = 16
_MAX_WORDS: Final = 65_536
_MAX_POWER: Final = 1 << 16
_INT64: Final = range(-(1 << 63), 1 << 63)
_PLAIN: Final = (bool, float, type(None), slice, type(...))


class Admission:
    """Checks the arguments of one call.

    Args:
        what: Name of the function, for messages.
        limit: Most bytes that one tensor may have.
        device: The owner's device, where tensors have to be.
        sparse: Whether tensors in COO layout are accepted.

    Attributes:
        sees_sparse: Whether a checked argument was in COO layout.
    """

    def __init__(self, what: str, limit: int, device: torch.device, sparse: bool) -> None:
        self._what = what
        self._limit = limit
        self._device = device
        self._sparse = sparse
        self._seen = 0
        self.sees_sparse = False

    def admit(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Checks every argument.

        Raises:
            InvalidArgumentError: A value has a type, dtype, layout or device that is not accepted.
            NotAllowedError: `out=` is given.
            TooLargeError: A tensor, or the lists together, are too large.
        """
        for name, value in kwargs.items():
            if name == "out":
                raise NotAllowedError(f"{self._what} returns its result here; out= is not accepted")
            if name == "device" and value is not None:
                check_device(value, self._device)
            else:
                self._one(value)
        for value in args:
            self._one(value)

    def _one(self, value: Any) -> None:
        kind = type(value)
        if isinstance(value, Tensor):
            check_tensor(value, self._what, self._limit, self._device, self._sparse)
            self.sees_sparse = self.sees_sparse or value.layout is not torch.strided
        elif kind is int:
            if value not in _INT64:
                raise InvalidArgumentError(f"{self._what} takes 64-bit integers; {value:.3e} does not fit")
        elif kind in (list, tuple, torch.Size):
            for each in value:
                self._seen += 1
                if self._seen > _MAX_WORDS:
                    raise TooLargeError(f"{self._what} takes at most {_MAX_WORDS:,} numbers in lists; send a tensor")
                self._one(each)
        elif kind is str:
            if len(value) > _MAX_TEXT:
                raise InvalidArgumentError(f"{self._what} takes strings of at most {_MAX_TEXT} characters")
        elif kind is torch.dtype:
            if value not in dtypes.ORDINARY:
                raise InvalidArgumentError(f"{self._what} does not compute in {value} here")
        elif kind is torch.device:
            check_device(value, self._device)
        elif kind not in _PLAIN:
            raise InvalidArgumentError(
                f"{self._what} takes tensors, numbers, strings and lists of them, not a {kind.__name__}; "
                "a function of your own with @remote may take it"
            )


def _einsum(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if len(args) > _MAX_OPERANDS or (len(args) > 1 and isinstance(args[1], (list, tuple)) and len(args[1]) > 16):
        raise InvalidArgumentError(f"einsum takes fewer than {_MAX_OPERANDS} operands here")


def _tensordot(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    dims = args[2] if len(args) > 2 else kwargs.get("dims", 2)
    if isinstance(dims, int) and not 0 <= dims <= _MAX_CONTRACTED:
        raise InvalidArgumentError(f"tensordot contracts 0 to {_MAX_CONTRACTED} dimensions, not {dims}")


def _items(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    for value in (*args[1:2], *kwargs.values()):
        if isinstance(value, int) and not isinstance(value, bool) and value > MAX_PIECES:
            # A value up to the longest dimension may be a length; a larger one is a count, and is checked.
            longest = max((*args[0].shape, 0)) if args and isinstance(args[0], Tensor) else 0
            items(value if value > longest else MAX_PIECES)


def _tolist(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if args and isinstance(args[0], Tensor) and args[0].numel() > MAX_LISTED:
        raise TooLargeError(
            f"tolist() would make {args[0].numel():,} Python numbers; {MAX_LISTED:,} are allowed. Fetch the tensor"
        )


def _to(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    for value in args[1:]:
        if isinstance(value, str) or type(value) is int:
            raise InvalidArgumentError(
                "to() takes a dtype here, or another tensor, or a torch.device that is the owner's"
            )


def _view(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if any(isinstance(value, torch.dtype) for value in (*args, *kwargs.values())):
        raise NotAllowedError("view() takes a shape here; reading the same bytes as another dtype is not allowed")


def _channels(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if not args or not isinstance(args[0], Tensor) or args[0].dim() < 2:
        raise InvalidArgumentError("the input of a normalization has at least a batch and a channel dimension")
    for value in (*args[1:5], *(kwargs.get(name) for name in ("running_mean", "running_var", "weight", "bias"))):
        if isinstance(value, Tensor) and tuple(value.shape) != (args[0].shape[1],):
            raise InvalidArgumentError(
                f"statistics and weights have one number for each of {args[0].shape[1]} channels, not the shape "
                f"{tuple(value.shape)}"
            )


def _bincount(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    own = args[0] if args else None
    least = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
    most = int(own.max()) if isinstance(own, Tensor) and own.numel() and own.dtype in dtypes.INTEGER else 0
    if max(most, least if isinstance(least, int) else 0) > _MOST_BINS:
        raise TooLargeError(f"bincount counts numbers up to {_MOST_BINS:,} here")


def _bins(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    bins = args[1] if len(args) > 1 else kwargs.get("bins", 100)
    if not isinstance(bins, int) or not 0 < bins <= _MOST_BINS:
        raise InvalidArgumentError(f"a histogram has 1 to {_MOST_BINS:,} bins")


def _matrix_power(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    power = args[1] if len(args) > 1 else kwargs.get("n", 0)
    if not isinstance(power, int) or not -_MAX_POWER <= power <= _MAX_POWER:
        raise InvalidArgumentError(f"the power of a matrix lies in [-{_MAX_POWER}, {_MAX_POWER}]")
    if power < 0:
        _finite(args, kwargs)


def _finite(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and not bool(torch.isfinite(value).all()):
            raise InvalidArgumentError("a matrix to be factorized holds NaN or infinity")
        if isinstance(value, Tensor) and max((*value.shape[-2:], 0)) > _LARGEST_MATRIX:
            raise TooLargeError(f"matrices are factorized up to {_LARGEST_MATRIX} rows and columns here")


def _norm(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Norms of matrices by their singular values."""
    order = args[1] if len(args) > 1 else kwargs.get("ord")
    along = args[2] if len(args) > 2 else kwargs.get("dim")
    matrices = [each for each in args[:1] if isinstance(each, Tensor) and each.dim() > 1]
    if matrices and order in (2, -2, "nuc") and (along is None or isinstance(along, (list, tuple))):
        _finite(matrices, {})


def _digits(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    for value in (*args[1:], *kwargs.values()):
        if isinstance(value, int) and abs(value) > _MOST_DIGITS:
            raise InvalidArgumentError(f"a number is rounded to at most {_MOST_DIGITS} digits")


def _summands(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, (list, tuple)) and any(isinstance(each, (list, tuple)) for each in value):
            raise InvalidArgumentError("sum() adds numbers and tensors here; lists are not concatenated")


def _sparse(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if not all(isinstance(each, Tensor) for each in args[:2]) or len(args) < 3 or "check_invariants" in kwargs:
        raise InvalidArgumentError("a sparse tensor is made of indices, values and a size, and always checked")


_MOST_BINS: Final = 1 << 24
_LARGEST_MATRIX: Final = 4096
_MOST_DIGITS: Final = 400

CHECKS: Final[dict[str, Callable[[Sequence[Any], Mapping[str, Any]], None]]] = {
    "einsum": _einsum,
    "tensordot": _tensordot,
    "pieces": _items,
    "tolist": _tolist,
    "to": _to,
    "view": _view,
    "channels": _channels,
    "bincount": _bincount,
    "bins": _bins,
    "matrix_power": _matrix_power,
    "finite": _finite,
    "sparse": _sparse,
    "norm": _norm,
    "digits": _digits,
    "summands": _summands,
    "shift": lambda args, kwargs: shifts((*args[:2],), {}),
    "no_smallest": lambda args, kwargs: no_smallest(args, {}),
}
"""Further checks by name; `Group.checks` says which function has which."""
