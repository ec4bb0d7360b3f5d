"""Offered: the functions of torch that one owner lets trainers call, each in a wrapper that checks its arguments."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from ps_service.functions import dtypes
from ps_service.functions.arguments import CHECKS, Admission
from ps_service.functions.constructors import construct
from ps_service.functions.group import Level
from ps_service.functions.guard import Guard
from ps_service.functions.listing import Listed, listed
from ps_service.memory.available import half_of_memory
from ps_wire.errors import InvalidArgumentError, NotAllowedError
from ps_wire.limits import Limits

if TYPE_CHECKING:
    from ps_service.functions.layers import LayerCheck

SMALL: Final = 1 << 20
"""Most elements to which small floating-point tensors could broadcast; below that nothing can go wrong."""


class TorchFunctions:
    """The functions of torch by name, as one owner offers them.

    Args:
        level: How many there are.

    Attributes:
        level: How many there are.
        device: Where the owner computes.
    """

    def __init__(self, level: Level = Level.BASIC) -> None:
        self.level = level
        self._listed = listed(level)
        self._wrapped: dict[str, Callable[..., Any]] = {}
        self.serve(Limits(), torch.device("cpu"))

    def serve(self, limits: Limits, device: torch.device) -> None:
        """Says whom they are offered for: an owner with these limits, that computes on this device."""
        self.device = device
        self._max_result_bytes = limits.max_result_bytes
        self._max_object_bytes = limits.max_object_bytes

    def get(self, name: str) -> Callable[..., Any] | None:
        """The function of that name, made to check its arguments; None if it is not offered."""
        found = self._wrapped.get(name)
        if found is None and name in self._listed:
            found = self._wrapped[name] = self._wrapper(self._listed[name])
        return found

    def method(self, name: str) -> Callable[..., Any]:
        """The method of tensors of that name.

        Raises:
            NotAllowedError: It is not offered.
        """
        found = self.get(f"torch.Tensor.{name}")
        if found is None:
            raise NotAllowedError(
                f"method {name!r} of a tensor may not be called remotely on this owner {self.explanation}; mark a "
                "function of your own with @remote, or fetch the tensor"
            )
        return found

    def checking(
        self, what: str, layer: LayerCheck, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AbstractContextManager[Any]:
        """Checks the arguments of a layer of torch now, and while it is entered what the layer does with them.

        Args:
            what: The layer's name, for messages.
            layer: Says which calls of it are harmless.
            args: What it is called with.
            kwargs: By name.

        Raises:
            InvalidArgumentError, TooLargeError: They are not what layers of torch take here.
        """
        if layer.passes(args, kwargs, self._max_result_bytes):
            return nullcontext()
        Admission(what, self._max_result_bytes, self.device, sparse=False).admit(args, kwargs)
        return Guard(what, self._max_result_bytes, self.device, sparse=False)

    def constructor(self, cls: type, name: str) -> Callable[..., Any]:
        """A class to make objects of; one of torch makes none that are larger than one object may be."""
        if not cls.__module__.startswith("torch."):
            return cls

        def make(*args: Any, **kwargs: Any) -> Any:
            return construct(cls, name, args, kwargs, self._max_object_bytes or half_of_memory(), self.device)

        make.__module__, make.__qualname__ = cls.__module__, cls.__qualname__
        return make

    @property
    def explanation(self) -> str:
        """Which functions there are, for messages."""
        return f"(--torch-functions {self.level.name.lower()}; docs/torch-functions.md lists them)"

    def _wrapper(self, entry: Listed) -> Callable[..., Any]:
        function = entry.function
        check = CHECKS[entry.check] if entry.check else None
        may_be_quick = not entry.group.grows and check is None and not entry.writes

        def call(*args: Any, **kwargs: Any) -> Any:
            if may_be_quick and not kwargs and _is_small(args):
                return function(*args)
            admission = Admission(entry.name, self._max_result_bytes, self.device, entry.takes_sparse)
            admission.admit(args, kwargs)
            if check is not None:
                check(args, kwargs)
            if entry.writes:
                _check_writable(entry.name, args)
            if entry.check == "sparse":
                kwargs["check_invariants"] = True
            with Guard(entry.name, self._max_result_bytes, self.device, entry.takes_sparse):
                return function(*args, **kwargs)

        # It travels by its name like the function itself.
        prefix, _, short = entry.name.rpartition(".")
        owner = prefix.endswith(".Tensor")
        call.__module__ = prefix.removesuffix(".Tensor")
        call.__name__ = short
        call.__qualname__ = f"Tensor.{short}" if owner else short
        call.__doc__ = function.__doc__
        call.__dict__["__wrapped__"] = function
        return call


def _is_small(args: tuple[Any, ...]) -> bool:
    """Whether a function that does not grow its arguments can do no harm with these: few floating-point numbers."""
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
    """What others may use as indices, and have checked already, is not written to."""
    if not args or not isinstance(args[0], Tensor) or args[0].dtype not in dtypes.FLOATING | dtypes.COMPLEX:
        raise InvalidArgumentError(f"{what} writes to floating-point tensors only; make a new one instead")
