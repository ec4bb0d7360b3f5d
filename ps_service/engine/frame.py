"""Frame: what one running call borrows."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from ps_service.state.cells import Ledger, Pin
from ps_service.state.objects import HostedObject
from ps_service.state.records import Leaf
from ps_service.state.rrefs import borrower
from ps_wire.errors import InvalidArgumentError
from ps_wire.scopes import current_scope
from ps_wire.trees import mapped


class Frame:
    """The modules one call runs on: private skins, whose parameters are pinned until the call is over.

    A call whose answer comes later can borrow nothing: its frame would have to stay open in one thread while its code
    runs on in others.

    Args:
        ledger: Guards the parameters.
        training: The mode the modules are in.
        recorded: Whether gradients of borrowed modules will be asked for.
        grad: Whether torch shall record what happens; if `recorded`, it has to.

    Attributes:
        leaves: What stands for each parameter of the borrowed modules.
    """

    def __init__(self, ledger: Ledger, training: bool, recorded: bool, grad: bool = True) -> None:
        self.leaves: list[Leaf] = []
        self._ledger = ledger
        self._training = training
        self._recorded = recorded
        self._grad = grad
        self._thread = 0
        self._stack = ExitStack()
        self._hooks = ExitStack()
        self._hooked = False
        self._borrowed: dict[str, nn.Module] = {}
        self._parameters: dict[int, tuple[HostedObject, str]] = {}
        # By storage; several parameters may be views of one.
        self._pins: dict[int, list[Pin]] = {}
        self._buffers: set[int] = set()

    def __enter__(self) -> Self:
        self._token = borrower.set(self)
        self._thread = threading.get_ident()
        self._grad_before = torch.is_grad_enabled()
        torch.set_grad_enabled(self._grad)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread = 0
        try:
            self._hooks.__exit__(kind, error, trace)
            self._stack.__exit__(kind, error, trace)
        finally:
            torch.set_grad_enabled(self._grad_before)
            borrower.reset(self._token)

    def borrow(self, hosted: HostedObject) -> nn.Module:
        """The skin of a module for this call."""
        if self._thread != threading.get_ident():
            raise InvalidArgumentError(
                f"{hosted} is lent to a call only while that runs, and in its thread; what runs later or elsewhere "
                "calls it through its reference, with rpc_sync() or rpc_async()"
            )
        known = self._borrowed.get(hosted.ref.object_id)
        if known is not None:
            return known
        assert hosted.skins is not None
        if self._grad and not self._hooked:
            # Not before: code that borrows nothing may do with torch whatever it likes.
            self._hooked = True
            self._hooks.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack, _Kept.unpack))
        parameters = list(hosted.parameters.values())
        scope = current_scope.get()
        nested = bool(self._borrowed) or (scope is not None and scope.depth > 0)
        reading = self._stack.enter_context(self._ledger.reading(parameters, hosted.cells, nested))
        if not self._recorded:
            for leaf in reading.leaves:
                leaf.requires_grad_(False)
        module = self._stack.enter_context(hosted.skins.lend(self._training, parameters, reading.leaves))
        for name, parameter, leaf, pin, steps in zip(
            hosted.parameters, parameters, reading.leaves, reading.pins, reading.steps, strict=True
        ):
            self.leaves.append(Leaf(hosted.ref._replace(parameter=name), parameter, leaf, steps))
            self._parameters[id(leaf)] = (hosted, name)
            self._pins.setdefault(_storage(leaf), []).append(pin)
        self._buffers.update(_storage(buffer) for buffer in hosted.value.buffers())
        self._borrowed[hosted.ref.object_id] = module
        return module

    def parameter_behind(self, leaf: torch.Tensor) -> tuple[HostedObject, str] | None:
        """The module and dotted name of the parameter for which a tensor stands in this call."""
        return self._parameters.get(id(leaf))

    def own(self, result: Any) -> Any:
        """The result, with copies in place of tensors that share memory with a module: others may change those."""

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.is_sparse:
                return tensor
            storage = _storage(tensor)
            return tensor.clone() if storage in self._pins or storage in self._buffers else tensor

        return mapped(result, copied)

    def _pack(self, tensor: torch.Tensor) -> _Kept:
        # Called for every tensor a forward saves for its backward.
        if tensor.is_sparse:
            return _Kept(tensor)
        storage = _storage(tensor)
        pins = self._pins.get(storage)
        if pins is not None:
            return _Pinned(tensor, self._ledger, pins)
        return _Kept(tensor.clone() if storage in self._buffers else tensor)


class _Kept:
    """A tensor that a forward saved for its backward.

    Without its history: a node that saves its own output would otherwise keep itself alive for ever. And with its
    version, because torch leaves it to such hooks to notice that a tensor was written to in between.
    """

    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor.detach()
        self._version = tensor._version

    def unpack(self) -> torch.Tensor:
        if self._tensor._version != self._version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"{self._tensor.dtype} of shape {tuple(self._tensor.shape)} is at version {self._tensor._version}; "
                f"expected version {self._version} instead"
            )
        return self._tensor


class _Pinned(_Kept):
    """A parameter that was saved; keeps its storage pinned for as long as torch keeps it."""

    __slots__ = ("_ledger", "_pins")

    def __init__(self, tensor: torch.Tensor, ledger: Ledger, pins: list[Pin]) -> None:
        super().__init__(tensor)
        self._ledger = ledger
        self._pins = pins
        for pin in pins:
            ledger.save(pin)

    def __del__(self) -> None:
        for pin in self._pins:
            self._ledger.free(pin)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
