"""Construction of torch modules under a memory budget, because trainers choose the constructor arguments."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from ps_service.functions.guard import Watch, check_result
from ps_service.functions.operations import rule_for
from ps_service.functions.sizes import nbytes
from ps_wire.errors import PsError, TooLargeError

_log = logging.getLogger(__name__)

MAX_MADE: Final = 20_000
"""Most operations that one constructor may run; this stops a module with a billion layers."""

_MAX_ENTRIES: Final = 4096
_MAX_LAYERS: Final = 256
_LAYERS: Final[tuple[tuple[type[nn.Module], str, int], ...]] = (
    (nn.RNNBase, "num_layers", 2),
    (nn.Transformer, "num_encoder_layers", 2),
    (nn.Transformer, "num_decoder_layers", 3),
)
"""Classes with a layer count: class, name of the argument, position of the argument."""


class Budget(Watch):
    """While entered, counts the bytes of new tensors before they are allocated: at most `limit` together.

    A `dry` one computes sizes only: nothing is allocated or written.
    """

    def __init__(self, what: str, limit: int, device: torch.device, dry: bool) -> None:
        super().__init__(what, limit, device)
        self._dry = dry
        self._made = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self._count += 1
        if self._count > MAX_MADE:
            raise TooLargeError(f"{self._what} takes more than {MAX_MADE:,} operations to make; ask for fewer layers")
        check_result(kwargs, self._device, f"{self._what} cannot be made with")
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
    """Makes a torch module, unless it would have more than `limit` bytes. `what` is its class in messages.

    Also refused are too many operations, another device, and dtypes that can be sent but not computed in. Any exception
    of the constructor itself is raised, too.
    """
    for cls, name, place in _LAYERS:
        count = args[place] if len(args) > place else kwargs.get(name)
        if issubclass(make, cls) and isinstance(count, int) and count > _MAX_LAYERS:
            raise TooLargeError(f"{what} would have {count:,} layers; {_MAX_LAYERS:,} are allowed")
    if any(isinstance(each, (list, tuple, dict)) and len(each) > _MAX_ENTRIES for each in (*args, *kwargs.values())):
        raise TooLargeError(f"{what} takes lists of at most {_MAX_ENTRIES:,} entries")
    try:
        # First without allocating: a module that is too large is refused before it takes memory.
        with Budget(what, limit, device, dry=True):
            make(*args, **kwargs)
    except PsError:
        raise
    except Exception:
        _log.debug("%s cannot be made without allocating", what, exc_info=True)
    with Budget(what, limit, device, dry=False):
        return make(*args, **kwargs)


def _sized(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result of an operation, as a tensor without memory."""
    if torch.Tag.inplace in func.tags or func._schema.is_mutable:
        return args[0]
    if func is torch.ops.aten.clone.default and args[0].is_meta:
        return torch.empty(args[0].shape, dtype=args[0].dtype, device="meta")
    if any(each.name == "device" for each in func._schema.arguments):
        kwargs = {**kwargs, "device": torch.device("meta"), "pin_memory": False}
    return func(*args, **kwargs)
