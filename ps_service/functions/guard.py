"""Dispatch modes that check every operation inside a torch function, layer or constructor before it runs.

The name of a function, or the settings of a layer that a trainer chose, say little about the memory that it reads and
takes. Modules, for which trainers choose the arguments of the constructor, are made under a budget.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

from ps_service.functions import dtypes
from ps_service.functions.operations import rule_for
from ps_service.functions.sizes import nbytes
from ps_service.functions.values import VALUES
from ps_wire.errors import InvalidArgumentError, NotAllowedError, PsError, TooLargeError
from ps_wire.numbers import INT64

_log = logging.getLogger(__name__)

MAX_OPERATIONS: Final = 20_000
"""Most operations that one function, layer or constructor may run: a longer loop would hold its thread, and a module
with a billion layers would be made."""

_MAX_TEXT: Final = 256
_MAX_WORDS: Final = 65_536
_PLAIN: Final = (bool, float, type(None), slice, type(...))
_MAX_ENTRIES: Final = 4096
_MAX_LAYERS: Final = 256
_LAYERS: Final[tuple[tuple[type[nn.Module], str, int], ...]] = (
    (nn.RNNBase, "num_layers", 2),
    (nn.Transformer, "num_encoder_layers", 2),
    (nn.Transformer, "num_decoder_layers", 3),
)
"""Classes with a layer count: class, name of the argument, position of the argument."""


class Watch(TorchDispatchMode):
    """A dispatch mode that only pushes and pops itself, so that it is safe in many threads. Torch's own also sets
    process-wide flags that tell the compiler about modes, which threads that enter and leave at the same time would
    leave wrong. Its first use would import the compiler."""

    def __init__(self, what: str, limit: int, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._what = what
        self._limit = limit
        self._device = device
        self._count = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __enter__(self) -> Self:
        _push_mode(self)
        return self

    def __exit__(self, *_: object) -> None:
        _pop_mode()

    def _begin(self, options: Mapping[str, Any], too_many: str, refusal: str) -> None:
        """Counts an operation, and checks the device and the dtype that it asks for. `too_many` ends the message about
        the count, and `refusal` stands in that about the dtype."""
        self._count += 1
        if self._count > MAX_OPERATIONS:
            raise TooLargeError(f"{self._what} takes more than {MAX_OPERATIONS:,} operations {too_many}")
        wanted, dtype = options.get("device"), options.get("dtype")
        if wanted is not None:
            self._check_device(wanted)
        if dtype is not None and dtype not in dtypes.ORDINARY:
            raise InvalidArgumentError(f"{self._what} {refusal} {dtype} here")

    def _check_device(self, device: torch.device | str | int) -> None:
        """Checks that a device that a trainer named is the owner's or the CPU."""
        found, own = torch.device(device), self._device
        if found.type not in ("cpu", own.type) or found.index not in (None, 0, own.index):
            raise InvalidArgumentError(f"this owner computes on {own}, not on {found}")


class Guard(Watch):
    """Checks the arguments of a call, and while entered every operation of this thread before it runs: no tensor may
    have more than `limit` bytes. `what` names the function or layer in messages. Only with `sparse` may tensors be in
    COO layout."""

    def __init__(self, what: str, limit: int, device: torch.device, sparse: bool) -> None:
        super().__init__(what, limit, device)
        self._sparse = sparse
        self._words = 0

    def admit(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Checks every argument of a call that begins now; raises the error of the first that is not accepted."""
        for name, value in kwargs.items():
            if name == "out":
                raise NotAllowedError(f"{self._what} returns its result here; out= is not accepted")
            if name == "device" and value is not None:
                self._check_device(value)
            else:
                self._admit_one(value)
        for value in args:
            self._admit_one(value)

    def _admit_one(self, value: Any) -> None:
        kind = type(value)
        if isinstance(value, Tensor):
            self._admit_tensor(value)
        elif kind is int:
            if value not in INT64:
                raise InvalidArgumentError(f"{self._what} takes 64-bit integers; {value:.3e} does not fit")
        elif kind in (list, tuple, torch.Size):
            for each in value:
                self._words += 1
                if self._words > _MAX_WORDS:
                    raise TooLargeError(f"{self._what} takes at most {_MAX_WORDS:,} numbers in lists; send a tensor")
                self._admit_one(each)
        elif kind is str:
            if len(value) > _MAX_TEXT:
                raise InvalidArgumentError(f"{self._what} takes strings of at most {_MAX_TEXT} characters")
        elif kind is torch.dtype:
            if value not in dtypes.ORDINARY:
                raise InvalidArgumentError(f"{self._what} does not compute in {value} here")
        elif kind is torch.device:
            self._check_device(value)
        elif kind not in _PLAIN:
            raise InvalidArgumentError(
                f"{self._what} takes tensors, numbers, strings and lists of them, not a {kind.__name__}; "
                "a function of your own with @remote may take it"
            )

    def _admit_tensor(self, tensor: Tensor) -> None:
        """Checks layout, dtype, device and size of one argument. Elements that it repeats (stride 0) count."""
        layout = tensor.layout
        if layout is not torch.strided:
            if layout is not torch.sparse_coo or not self._sparse:
                raise InvalidArgumentError(f"{self._what} takes dense tensors here; call to_dense() before you send it")
            _check_coo(tensor)
        if tensor.dtype not in dtypes.ORDINARY:
            raise InvalidArgumentError(
                f"{self._what} does not compute in {tensor.dtype} here; convert the tensor first"
            )
        if tensor.device.type not in ("cpu", self._device.type):
            raise InvalidArgumentError(f"this owner computes on {self._device}, and a tensor is on {tensor.device}")
        size = nbytes(tensor)
        if size > self._limit:
            raise TooLargeError(
                f"an argument of {self._what} has {size:,} bytes, counting what it repeats; the limit is "
                f"{self._limit:,}. Give it less at a time, or raise max_result_bytes on the owner"
            )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self._begin(kwargs, "of torch; ask for less", "does not compute in")
        layout = kwargs.get("layout")
        if layout is not None and layout is not torch.strided and not self._sparse:
            raise InvalidArgumentError(f"{self._what} makes dense tensors only")
        if kwargs.get("pin_memory"):
            raise NotAllowedError("trainers may not ask for pinned memory")
        size = rule_for(func)(*args, **kwargs)
        if size > self._limit:
            raise TooLargeError(
                f"{self._what} would need {size:,} bytes for one result; the limit is {self._limit:,}. Ask for less at "
                "a time, or raise max_result_bytes on the owner"
            )
        check = VALUES.get(func.overloadpacket)
        if check is not None:
            check(*args, **kwargs)
        return func(*args, **kwargs)


class Budget(Watch):
    """While entered, counts the bytes of new tensors before they are allocated: at most `limit` together. A `dry` one
    computes sizes only: nothing is allocated or written."""

    def __init__(self, what: str, limit: int, device: torch.device, dry: bool) -> None:
        super().__init__(what, limit, device)
        self._dry = dry
        self._made = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self._begin(kwargs, "to make; ask for fewer layers", "cannot be made with")
        expected = rule_for(func)(*args, **kwargs)
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
    """Makes a torch module, unless it would have more than `limit` bytes. `what` is its class in messages. Also refused
    are too many operations, another device, and dtypes that can be sent but not computed in. Any exception of the
    constructor itself is raised, too."""
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


def _check_coo(tensor: Tensor) -> None:
    """Checks every index of a sparse tensor against its shape."""
    if math.prod(tensor.shape) >= 1 << 62:
        raise InvalidArgumentError("a sparse tensor may have at most 2**62 elements, counting its zeros")
    try:
        torch._validate_sparse_coo_tensor_args(tensor._indices(), tensor._values(), tensor.shape, tensor.is_coalesced())
    except RuntimeError as error:
        raise InvalidArgumentError(f"not a valid sparse tensor: {error}") from None
