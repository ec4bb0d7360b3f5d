"""Further checks of the arguments of some torch functions before they are called, which `Guard` has admitted; `groups`
says which function has which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ps_service.functions import dtypes
from ps_service.functions.sizes import MAX_PIECES, items
from ps_wire.errors import InvalidArgumentError, NotAllowedError, TooLargeError

Check = Callable[[Sequence[Any], dict[str, Any]], None]
"""Takes the arguments of a function, and raises an `InvalidArgumentError` if they are not accepted."""

MAX_LISTED: Final = 65_536
"""Most elements `tolist` may turn into Python numbers: the conversion holds the GIL, so other requests wait."""

_MAX_CONTRACTED: Final = 64
_MAX_OPERANDS: Final = 16
_MAX_POWER: Final = 1 << 16
_MOST_BINS: Final = 1 << 24
_MOST_DIGITS: Final = 400
_LARGEST_MATRIX: Final = 4096


def einsum(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Bounds the number of operands."""
    if len(args) > _MAX_OPERANDS or (len(args) > 1 and isinstance(args[1], (list, tuple)) and len(args[1]) > 16):
        raise InvalidArgumentError(f"einsum takes fewer than {_MAX_OPERANDS} operands here")


def tensordot(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Bounds the number of dimensions that are contracted."""
    dims = args[2] if len(args) > 2 else kwargs.get("dims", 2)
    if isinstance(dims, int) and not 0 <= dims <= _MAX_CONTRACTED:
        raise InvalidArgumentError(f"tensordot contracts 0 to {_MAX_CONTRACTED} dimensions, not {dims}")


def pieces(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Bounds the number of tensors in the result."""
    for value in (*args[1:2], *kwargs.values()):
        if isinstance(value, int) and not isinstance(value, bool) and value > MAX_PIECES:
            # A value up to the longest dimension may be a length; a larger one is a count, and is checked.
            longest = max((*args[0].shape, 0)) if args and isinstance(args[0], Tensor) else 0
            items(value if value > longest else MAX_PIECES)


def tolist(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Bounds the number of Python numbers."""
    if args and isinstance(args[0], Tensor) and args[0].numel() > MAX_LISTED:
        raise TooLargeError(
            f"tolist() would make {args[0].numel():,} Python numbers; {MAX_LISTED:,} are allowed. Fetch the tensor"
        )


def to(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Refuses devices and dtypes by name."""
    for value in args[1:]:
        if isinstance(value, str) or type(value) is int:
            raise InvalidArgumentError(
                "to() takes a dtype here, or another tensor, or a torch.device that is the owner's"
            )


def view(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Refuses to read the same bytes as another dtype."""
    if any(isinstance(value, torch.dtype) for value in (*args, *kwargs.values())):
        raise NotAllowedError("view() takes a shape here; reading the same bytes as another dtype is not allowed")


def channels(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Checks that statistics and weights have one number for each channel."""
    if not args or not isinstance(args[0], Tensor) or args[0].dim() < 2:
        raise InvalidArgumentError("the input of a normalization has at least a batch and a channel dimension")
    for value in (*args[1:5], *(kwargs.get(name) for name in ("running_mean", "running_var", "weight", "bias"))):
        if isinstance(value, Tensor) and tuple(value.shape) != (args[0].shape[1],):
            raise InvalidArgumentError(
                f"statistics and weights have one number for each of {args[0].shape[1]} channels, not the shape "
                f"{tuple(value.shape)}"
            )


def bincount(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Bounds the numbers that are counted."""
    own = args[0] if args else None
    least = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
    most = int(own.max()) if isinstance(own, Tensor) and own.numel() and own.dtype in dtypes.INTEGER else 0
    if max(most, least if isinstance(least, int) else 0) > _MOST_BINS:
        raise TooLargeError(f"bincount counts numbers up to {_MOST_BINS:,} here")


def bins(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Bounds the number of bins."""
    bins = args[1] if len(args) > 1 else kwargs.get("bins", 100)
    if not isinstance(bins, int) or not 0 < bins <= _MOST_BINS:
        raise InvalidArgumentError(f"a histogram has 1 to {_MOST_BINS:,} bins")


def matrix_power(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Bounds the power, and for negative ones does what `finite` does."""
    power = args[1] if len(args) > 1 else kwargs.get("n", 0)
    if not isinstance(power, int) or not -_MAX_POWER <= power <= _MAX_POWER:
        raise InvalidArgumentError(f"the power of a matrix lies in [-{_MAX_POWER}, {_MAX_POWER}]")
    if power < 0:
        finite(args, kwargs)


def finite(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Bounds matrices that are factorized, which must hold neither NaN nor infinity."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and not bool(torch.isfinite(value).all()):
            raise InvalidArgumentError("a matrix to be factorized holds NaN or infinity")
        if isinstance(value, Tensor) and max((*value.shape[-2:], 0)) > _LARGEST_MATRIX:
            raise TooLargeError(f"matrices are factorized up to {_LARGEST_MATRIX} rows and columns here")


def norm(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Norms of matrices by their singular values."""
    order = args[1] if len(args) > 1 else kwargs.get("ord")
    along = args[2] if len(args) > 2 else kwargs.get("dim")
    matrices = [each for each in args[:1] if isinstance(each, Tensor) and each.dim() > 1]
    if matrices and order in (2, -2, "nuc") and (along is None or isinstance(along, (list, tuple))):
        finite(matrices, {})


def digits(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Bounds the number of digits."""
    for value in (*args[1:], *kwargs.values()):
        if isinstance(value, int) and abs(value) > _MOST_DIGITS:
            raise InvalidArgumentError(f"a number is rounded to at most {_MOST_DIGITS} digits")


def summands(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Refuses lists among what is added."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, (list, tuple)) and any(isinstance(each, (list, tuple)) for each in value):
            raise InvalidArgumentError("sum() adds numbers and tensors here; lists are not concatenated")


def sparse(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Has torch check every index."""
    if not all(isinstance(each, Tensor) for each in args[:2]) or len(args) < 3 or "check_invariants" in kwargs:
        raise InvalidArgumentError("a sparse tensor is made of indices, values and a size, and always checked")
    kwargs["check_invariants"] = True
