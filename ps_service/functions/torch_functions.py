"""The functions of torch and Python that one owner offers to trainers, each in a wrapper that checks its arguments."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from ps_service.functions import dtypes
from ps_service.functions.groups import Level
from ps_service.functions.guard import Guard, construct
from ps_service.functions.listing import Listed, listed
from ps_service.memory.available import memory
from ps_wire.decorators import is_hosted
from ps_wire.errors import InvalidArgumentError, NotAllowedError, UnknownMethodError
from ps_wire.limits import Limits

if TYPE_CHECKING:
    from ps_service.functions.layers import LayerCheck

_NO_SCHEMA: Final = "Overloaded torch operator invoked from Python failed to match any schema"
"""What torch's rpc says if the arguments fit none of a function's signatures."""

_OWN: Final = ("input", "self", "A")
"""Names of a function's first argument, which a call may give by its name."""

SMALL: Final = 1 << 20
"""Most elements to which the arguments could broadcast for a call to skip the checks."""


class TorchFunctions:
    """The torch functions that one owner offers, by name; the level says how many there are."""

    def __init__(self, level: Level = Level.BASIC) -> None:
        self.level = level
        self.listed = listed(level)
        self._wrapped: dict[str, Callable[..., Any]] = {}
        self.serve(Limits(), torch.device("cpu"))

    def serve(self, limits: Limits, device: torch.device) -> None:
        """Sets the limits and the device of the owner that offers the functions."""
        self.device = device
        self._max_result_bytes = limits.max_result_bytes
        self._max_object_bytes = limits.max_object_bytes

    def get(self, name: str) -> Callable[..., Any] | None:
        """The function of that full name, wrapped to check its arguments; None if it is not offered."""
        found = self._wrapped.get(name)
        if found is None and name in self.listed:
            found = self._wrapped[name] = self._wrapper(self.listed[name])
        return found

    def method(self, name: str) -> Callable[..., Any]:
        """The tensor method of that name, wrapped to check its arguments. Raises `UnknownMethodError` if tensors have
        no such method, and `NotAllowedError` if it is not offered."""
        found = self.get(f"torch.Tensor.{name}")
        if found is None:
            if not hasattr(Tensor, name):
                raise UnknownMethodError(f"a tensor has no attribute {name!r} that can be called")
            raise NotAllowedError(
                f"method {name!r} of a tensor may not be called remotely on this owner {self.explanation}; mark a "
                "function of your own with @remote, or fetch the tensor"
            )
        return found

    def checking(
        self, what: str, layer: LayerCheck, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AbstractContextManager[Any]:
        """Checks the arguments of a torch layer now, and its operations while the returned context is entered. `what`
        is the layer's name in messages. Both raise an `InvalidArgumentError` or a `TooLargeError`."""
        if layer.passes(args, kwargs, self._max_result_bytes):
            return nullcontext()
        guard = Guard(what, self._max_result_bytes, self.device, sparse=False)
        guard.admit(args, kwargs)
        return guard

    def constructor(self, cls: type, name: str) -> Callable[..., Any]:
        """The callable that makes objects of a class; torch classes are made under `max_object_bytes`."""
        if is_hosted(cls) or not cls.__module__.startswith("torch."):
            return cls

        def make(*args: Any, **kwargs: Any) -> Any:
            return construct(cls, name, args, kwargs, self._max_object_bytes or memory() // 2, self.device)

        make.__module__, make.__qualname__ = cls.__module__, cls.__qualname__
        return make

    @property
    def explanation(self) -> str:
        """The level and where it is documented, for messages."""
        return f"(--torch-functions {self.level.name.lower()}; docs/torch-functions.md lists them)"

    def _wrapper(self, entry: Listed) -> Callable[..., Any]:
        function, check, sparse = entry.function, entry.check, entry.takes_sparse
        may_be_quick = not entry.group.grows and check is None and not entry.writes

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                if may_be_quick and not kwargs and _is_small(args):
                    return function(*args)
                guard = Guard(entry.name, self._max_result_bytes, self.device, sparse)
                guard.admit(args, kwargs)
                checked = args or tuple(kwargs[name] for name in _OWN if name in kwargs)
                if check is not None:
                    check(checked, kwargs)
                if entry.writes:
                    _check_writable(entry.name, checked)
                with guard:
                    return function(*args, **kwargs)
            except TypeError as error:
                text = str(error)
                if "invalid combination of arguments" in text or "must be Tensor, not" in text:
                    raise TypeError(f"{_NO_SCHEMA}: {error}") from None
                raise

        # It is sent by name, like the function itself.
        prefix, _, short = entry.name.rpartition(".")
        call.__module__, call.__name__ = prefix.removesuffix(".Tensor"), short
        call.__qualname__ = f"Tensor.{short}" if prefix.endswith(".Tensor") else short
        call.__doc__ = function.__doc__
        call.__dict__["__wrapped__"] = function
        return call


def _is_small(args: tuple[Any, ...]) -> bool:
    """Whether the arguments are so few floating-point numbers that a function which does not grow them is harmless."""
    count = 1
    for value in args:
        kind = type(value)
        if kind is Tensor:
            if value.dtype not in dtypes.FLOATING or value.layout is not torch.strided or value.is_meta:
                return False
            count *= value.numel()
        elif kind is not int and kind is not float and value is not None and kind is not bool:
            return False
    return 0 < count <= SMALL


def _check_writable(what: str, args: tuple[Any, ...]) -> None:
    """Refuses to write to integer tensors: another thread may have checked them as indices already."""
    if not args or not isinstance(args[0], Tensor) or args[0].dtype not in dtypes.FLOATING | dtypes.COMPLEX:
        raise InvalidArgumentError(f"{what} writes to floating-point tensors only; make a new one instead")
