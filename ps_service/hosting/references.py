"""References to hosted objects, as hosted code gets them for handles."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

import torch

from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from ps_service.hosting.histories import History
    from ps_service.hosting.objects import HostedObject


class Borrower(Protocol):
    """The interface of the running call for references."""

    def bind(self, hosted: HostedObject) -> Any:
        """A module for this call, whose use is recorded in it: the module itself, or a view of it."""

    def parameter_behind(self, leaf: torch.Tensor) -> tuple[HostedObject, str] | None:
        """The object and dotted name of the parameter that a leaf of this call replaces."""

    def leaves_of_parameters(self) -> dict[int, torch.Tensor]:
        """The leaves that replace parameters in this call, by `id()` of the parameter."""

    def meets(self, value: Any) -> None:
        """Notes that the code uses the value of an object that is no module."""

    def lends(self, value: Any) -> bool:
        """Whether a value holds parts of a view, or shares memory with parameters or buffers of modules."""

    def runs_later(self) -> None:
        """Notes that code of the call will run in its backward, where it finds the values of this call."""

    def recomputes(self) -> None:
        """Notes that `torch.utils.checkpoint` asks for the state of the generator, to set it again in the backward."""

    def sets_hooks(self, pack: Any) -> None:
        """Notes that hooks of saved tensors are set."""

    def sets_attribute(self) -> None:
        """Notes that the code sets an attribute of a module."""

    @property
    def records_look_ups(self) -> bool:
        """Whether look-ups of its code in tables belong to a pass now."""

    def looks_up(self, table: HostedObject, mark: int, ids: torch.Tensor) -> bool:
        """Notes that the code looks up ids in a table of this owner, and whether that is recorded. The mark is that of
        the owner in the routing. Raises `RowsMovedError` if rows of them have moved, or are about to."""

    def lift(self, pack: Any) -> bool:
        """Allows that hooks of saved tensors are disabled for a transform, if `pack`, the hook that was set last, is
        that of this call. Returns whether it is."""


binder: ContextVar[Borrower | None] = ContextVar("borrower", default=None)
"""The call that runs in this task or thread."""


_IN_A_GROUP: Final = frozenset(("owner", "owner_name", "is_owner", "remote", "rpc_async", "rpc_sync", "to_here"))
"""Methods of what hosted code gets for a handle on an owner that is in a group."""


class RRef:
    """A reference to an object on this owner, as an argument or a result of hosted code.

    Hosted code gets an `RRef` for a handle among its arguments. A method that returns `RRef(value)` leaves the value on
    the owner, and its caller gets a handle to it. `RRef(parameter)` of a hosted module is a handle to that parameter.

    The value is hosted as it is, and not as a copy: what one call does to `local_value()` is seen by all others. There
    are two exceptions, whose containers are copied: values with a history in a pass, and those that hold parts of a
    module.

    Attributes:
        history: The recorded call that a new value is a result of; None if gradients cannot propagate through it.
        is_lent: Whether a new value holds parts of a module that the call uses.
    """

    def __init__(self, value: Any) -> None:
        self.history: History | None = None
        self.is_lent = False
        self._value = value
        self._hosted: HostedObject | None = None
        self._parameter = ""
        call = binder.get()
        if call is None:
            return
        behind = call.parameter_behind(value) if isinstance(value, torch.Tensor) else None
        if behind is not None:
            self._hosted, self._parameter = behind
        else:
            self.is_lent = call.lends(value)

    @classmethod
    def to(cls, hosted: HostedObject, parameter: str = "") -> RRef:
        """A reference to an object that is hosted already."""
        rref = cls.__new__(cls)
        rref.history, rref.is_lent = None, False
        rref._value, rref._hosted, rref._parameter = hosted.value, hosted, parameter
        return rref

    @property
    def hosted(self) -> HostedObject | None:
        """The hosted object; None for a new value that was not sent yet."""
        return self._hosted

    @property
    def parameter(self) -> str:
        """Dotted name of the parameter; empty for the object itself."""
        return self._parameter

    def adopt(self, hosted: HostedObject) -> None:
        """Sets the hosted object of a new value."""
        if self._hosted is not None:
            raise InvalidArgumentError(f"{self} is hosted already")
        self._hosted = hosted

    def enter(self, value: Any) -> None:
        """Sets the value to use in this call, which is part of the graph."""
        self._value = value

    def local_value(self) -> Any:
        """The object itself.

        For a module, inside a call, that may be a view of it, and its computations are recorded in the call's context.
        For a parameter it is its leaf in this call.
        """
        hosted, call = self._hosted, binder.get()
        if hosted is None or not hosted.is_module:
            if call is not None:
                call.meets(self._value)
            return self._value
        module = hosted.value if call is None else call.bind(hosted)
        if not self._parameter:
            return module
        path, _, name = self._parameter.rpartition(".")
        return getattr(module.get_submodule(path), name)

    if not TYPE_CHECKING:  # a checker of types knows which names there are

        def __getattr__(self, name: str) -> NoReturn:
            if name in _IN_A_GROUP:
                raise AttributeError(
                    f"{name}() of a reference needs an owner that is in a group: start it with --directory. Without, "
                    "local_value() is the object"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<RRef {self._hosted or type(self._value).__name__}{'.' if self._parameter else ''}{self._parameter}>"
