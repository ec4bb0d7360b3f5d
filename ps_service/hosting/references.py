"""RRefs: how hosted code sees handles."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from ps_service.hosting.history import History
    from ps_service.hosting.objects import HostedObject


class Borrower(Protocol):
    """The running call, as far as references have to know it."""

    def bind(self, hosted: HostedObject) -> Any:
        """The value of another object, so that its gradients are recorded too."""

    def parameter_behind(self, leaf: torch.Tensor) -> tuple[HostedObject, str] | None:
        """The object and dotted name of the parameter for which a tensor stands in this call."""


binder: ContextVar[Borrower | None] = ContextVar("borrower", default=None)
"""The call that runs here."""


class RRef:
    """A reference to an object on this owner, as an argument or a result of hosted code.

    A handle that a trainer passes to a call arrives as an `RRef`. A method that returns `RRef(value)` leaves the value
    on the owner, and its caller receives a handle to it; for a parameter of a hosted module, a handle to the parameter.

    Attributes:
        history: Which recorded call a new value is a result of, if gradients can go back through that.
    """

    def __init__(self, value: Any) -> None:
        self.history: History | None = None
        self._value = value
        self._hosted: HostedObject | None = None
        self._parameter = ""
        call = binder.get()
        behind = call.parameter_behind(value) if call is not None and isinstance(value, torch.Tensor) else None
        if behind is not None:
            self._hosted, self._parameter = behind

    @classmethod
    def to(cls, hosted: HostedObject, parameter: str = "") -> RRef:
        """A reference to something that is hosted already."""
        rref = cls(hosted.value)
        rref._hosted = hosted
        rref._parameter = parameter
        return rref

    @property
    def hosted(self) -> HostedObject | None:
        """The object referred to, or None while a new value has not crossed the wire."""
        return self._hosted

    @property
    def parameter(self) -> str:
        """Dotted name of the parameter referred to; empty for the object itself."""
        return self._parameter

    def adopt(self, hosted: HostedObject) -> None:
        """A new value has become a hosted object."""
        if self._hosted is not None:
            raise InvalidArgumentError(f"{self} is hosted already")
        self._hosted = hosted

    def enter(self, value: Any) -> None:
        """In this call the value has a history, and stands in the graph."""
        self._value = value

    def local_value(self) -> Any:
        """The object itself.

        For a module, inside a call, that is the private copy on which the call may run it: what it computes is recorded
        in the call's context. For a parameter it is the tensor that stands for it in this call.
        """
        hosted, call = self._hosted, binder.get()
        if hosted is None or hosted.bound_copies is None:
            return self._value
        module = hosted.value if call is None else call.bind(hosted)
        if not self._parameter:
            return module
        path, _, name = self._parameter.rpartition(".")
        return getattr(module.get_submodule(path), name)

    def __repr__(self) -> str:
        return f"<RRef {self._hosted or type(self._value).__name__}{'.' if self._parameter else ''}{self._parameter}>"
