"""A dispatch mode that checks every operation inside a torch function or layer before it runs.

The name of a function says little about the memory it reads and takes. The guard checks the operations that it runs,
with their actual arguments. The same holds for layers, whose settings came from a trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ps_service.functions import dtypes
from ps_service.functions.dispatch_watch import Watch
from ps_service.functions.operations import rule_for
from ps_service.functions.sizes import nbytes, tensors
from ps_service.functions.values import VALUES
from ps_wire.errors import InvalidArgumentError, NotAllowedError, TooLargeError

MAX_OPERATIONS: Final = 20_000
"""Most operations that one function or layer may run; a longer loop would hold its thread."""


class Guard(Watch):
    """While entered, checks every operation of this thread before it runs.

    Args:
        what: Name of the function or layer, for messages.
        limit: Most bytes that one result may have.
        device: The owner's device, where tensors have to be.
        sparse: Whether tensors in COO layout are accepted.
    """

    def __init__(self, what: str, limit: int, device: torch.device, sparse: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._what = what
        self._limit = limit
        self._device = device
        self._sparse = sparse
        self._count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self._count += 1
        if self._count > MAX_OPERATIONS:
            raise TooLargeError(f"{self._what} takes more than {MAX_OPERATIONS:,} operations of torch; ask for less")
        self._check_options(kwargs)
        packet = func.overloadpacket
        self._check_size(rule_for(func)(args, kwargs))
        check: Callable[[Sequence[Any], dict[str, Any]], None] | None = VALUES.get(packet)
        if check is not None:
            check(args, kwargs)
        return func(*args, **kwargs)

    def _check_options(self, options: dict[str, Any]) -> None:
        check_result(options, self._device, f"{self._what} does not compute in")
        layout = options.get("layout")
        if layout is not None and layout is not torch.strided and not self._sparse:
            raise InvalidArgumentError(f"{self._what} makes dense tensors only")
        if options.get("pin_memory"):
            raise NotAllowedError("trainers may not ask for pinned memory")

    def _check_size(self, size: int) -> None:
        if size > self._limit:
            raise TooLargeError(
                f"{self._what} would need {size:,} bytes for one result; the limit is {self._limit:,}. Ask for less at "
                "a time, or raise max_result_bytes on the owner"
            )


def check_result(options: Mapping[str, Any], device: torch.device, refusal: str) -> None:
    """Checks the device and the dtype that are asked for among an operation's keyword arguments.

    Args:
        options: The keyword arguments.
        device: The owner's device.
        refusal: The beginning of the message about a dtype that is refused.

    Raises:
        InvalidArgumentError: The device is another one, or the dtype is none that torch computes in here.
    """
    wanted, dtype = options.get("device"), options.get("dtype")
    if wanted is not None:
        check_device(wanted, device)
    if dtype is not None and dtype not in dtypes.ORDINARY:
        raise InvalidArgumentError(f"{refusal} {dtype} here")


def check_device(device: torch.device | str | int, own: torch.device) -> None:
    """Checks a device that a trainer named.

    Raises:
        InvalidArgumentError: It is neither the owner's nor the CPU.
    """
    found = torch.device(device)
    if found.type not in ("cpu", own.type) or found.index not in (None, 0, own.index):
        raise InvalidArgumentError(f"this owner computes on {own}, not on {found}")


def check_tensor(tensor: Tensor, what: str, limit: int, device: torch.device, sparse: bool) -> None:
    """Checks the layout, dtype, device and size of one argument.

    Raises:
        InvalidArgumentError: Its layout, dtype or device is not accepted.
        TooLargeError: It has more than `limit` bytes, counting elements that it repeats (stride 0).
    """
    layout = tensor.layout
    if layout is not torch.strided:
        if layout is not torch.sparse_coo or not sparse:
            raise InvalidArgumentError(f"{what} takes dense tensors here; call to_dense() before you send it")
        check_coo(tensor)
    if tensor.dtype not in dtypes.ORDINARY:
        raise InvalidArgumentError(f"{what} does not compute in {tensor.dtype} here; convert the tensor first")
    if tensor.device.type not in ("cpu", device.type):
        raise InvalidArgumentError(f"this owner computes on {device}, and a tensor is on {tensor.device}")
    size = nbytes(tensor)
    if size > limit:
        raise TooLargeError(
            f"an argument of {what} has {size:,} bytes, counting what it repeats; the limit is {limit:,}. Give "
            "it less at a time, or raise max_result_bytes on the owner"
        )


def check_coo(tensor: Tensor) -> None:
    """Checks every index of a sparse tensor against its shape.

    Raises:
        InvalidArgumentError: One is out of range.
    """
    indices, values = tensor._indices(), tensor._values()
    elements = 1
    for length in tensor.shape:
        elements *= length
    if elements >= 1 << 62:
        raise InvalidArgumentError("a sparse tensor may have at most 2**62 elements, counting its zeros")
    try:
        torch._validate_sparse_coo_tensor_args(indices, values, tensor.shape, tensor.is_coalesced())
    except RuntimeError as error:
        raise InvalidArgumentError(f"not a valid sparse tensor: {error}") from None


def total(values: Sequence[Any]) -> int:
    """Elements of all tensors among values, counting what is repeated."""
    return sum(each.numel() for each in tensors(values))
