"""Constructors: modules of torch are made under a budget, because trainers choose their arguments."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from ps_service.functions import dtypes
from ps_service.functions.dispatch_watch import Watch
from ps_service.functions.guard import check_device
from ps_service.functions.operations import rule_for
from ps_service.functions.sizes import nbytes
from ps_wire.errors import InvalidArgumentError, PsError, TooLargeError

_log = logging.getLogger(__name__)

MAX_MADE: Final = 20_000
"""Most operations that one constructor may run: one with a billion layers is stopped here."""

_MAX_ENTRIES: Final = 4096
_MAX_LAYERS: Final = 256
_LAYERS: Final[tuple[tuple[type[nn.Module], str, int], ...]] = (
    (nn.RNNBase, "num_layers", 2),
    (nn.Transformer, "num_encoder_layers", 2),
    (nn.Transformer, "num_decoder_layers", 3),
)
"""Classes with numbers of layers: their names, and their places among the arguments."""


class Budget(Watch):
    """While it is entered, what is made is counted before it is made.

    Args:
        what: What is being made, for messages.
        limit: Most bytes of all tensors together.
        device: Where tensors may be.
        dry: Whether only sizes matter: nothing gets memory, and nothing is written.
    """

    def __init__(self, what: str, limit: int, device: torch.device, dry: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._what = what
        self._limit = limit
        self._device = device
        self._dry = dry
        self._made = 0
        self._count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self._count += 1
        if self._count > MAX_MADE:
            raise TooLargeError(f"{self._what} takes more than {MAX_MADE:,} operations to make; ask for fewer layers")
        if kwargs.get("device") is not None:
            check_device(kwargs["device"], self._device)
        if kwargs.get("dtype") is not None and kwargs["dtype"] not in dtypes.ORDINARY:
            raise InvalidArgumentError(f"{self._what} cannot be made of {kwargs['dtype']} here")
        expected = rule_for(func)(args, kwargs)
        if expected + self._made > self._limit:
            raise TooLargeError(
                f"{self._what} would need {expected + self._made:,} bytes or more; the limit for one object is "
                f"{self._limit:,}. Make a smaller one, or raise max_object_bytes on the owner"
            )
        made = _sized(func, args, kwargs) if self._dry else func(*args, **kwargs)
        if isinstance(made, Tensor) and not func.is_view and "Tensor(a" not in str(func._schema):
            self._made += nbytes(made)
        return made


def construct(
    make: type[Any],
    what: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    limit: int,
    device: torch.device,
) -> Any:
    """Makes a module of torch, unless that would take more memory than one object may have.

    Args:
        make: Its class.
        what: Its name, for messages.
        args: Its arguments.
        kwargs: Its keyword arguments.
        limit: Most bytes that it may have.
        device: Where the owner computes.

    Raises:
        TooLargeError: It would need more, or take too long to make.
        InvalidArgumentError: It would be made on another device, or of a dtype that only travels.
        Exception: Whatever the constructor raises.
    """
    for cls, name, place in _LAYERS:
        count = args[place] if len(args) > place else kwargs.get(name)
        if issubclass(make, cls) and isinstance(count, int) and count > _MAX_LAYERS:
            raise TooLargeError(f"{what} would have {count:,} layers; {_MAX_LAYERS:,} are allowed")
    _check_entries(what, (*args, *kwargs.values()))
    try:
        # First without memory: what is too large is known before any of it is there.
        with Budget(what, limit, device, dry=True):
            make(*args, **kwargs)
    except PsError:
        raise
    except Exception:
        _log.debug("%s cannot be made without memory", what, exc_info=True)
    with Budget(what, limit, device, dry=False):
        return make(*args, **kwargs)


def _sized(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result of an operation, as far as its size goes."""
    if torch.Tag.inplace in func.tags or func._schema.is_mutable:
        return args[0]
    if func is torch.ops.aten.clone.default and args[0].is_meta:
        return torch.empty(args[0].shape, dtype=args[0].dtype, device="meta")
    if any(each.name == "device" for each in func._schema.arguments):
        kwargs = {**kwargs, "device": torch.device("meta"), "pin_memory": False}
    return func(*args, **kwargs)


def _check_entries(what: str, values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, (list, tuple, dict)) and len(value) > _MAX_ENTRIES:
            raise TooLargeError(f"{what} takes lists of at most {_MAX_ENTRIES:,} entries")
