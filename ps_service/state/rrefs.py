"""RRefs: how hosted code sees handles."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from ps_service.state.objects import HostedObject
from ps_wire.errors import InvalidArgumentError

borrow: ContextVar[Callable[[HostedObject], Any] | None] = ContextVar("borrow", default=None)
"""How the running call gets at the value of another object, so that its gradients are recorded too."""


class RRef:
    """A reference to an object on this owner, as an argument or a result of a hosted method.

    A handle that a trainer passes to a call arrives as an `RRef`. A method that returns `RRef(value)` leaves the value
    on the owner, and its caller receives a handle to it.
    """

    def __init__(self, value: Any) -> None:
        self._value = value
        self._hosted: HostedObject | None = None
        self._parameter = ""

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

    def local_value(self) -> Any:
        """The object itself.

        For a module, inside a call, that is the private copy on which the call may run it: what it computes is recorded
        in the call's context. For a parameter it is the tensor that stands for it in this call.
        """
        hosted, borrowing = self._hosted, borrow.get()
        if hosted is None or hosted.skins is None:
            return self._value
        module = self._value if borrowing is None else borrowing(hosted)
        if not self._parameter:
            return module
        path, _, name = self._parameter.rpartition(".")
        return getattr(module.get_submodule(path), name)

    def __repr__(self) -> str:
        return f"<RRef {self._hosted or type(self._value).__name__}{'.' if self._parameter else ''}{self._parameter}>"
