"""Peers: other owners, as far as hosted code on this one has to do with them.

This package knows nothing of clients. Whoever puts an owner and a client together (the command line,
`trainer_client.rpc`) gives the engine its peers; an owner without them is `Alone`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from ps_service.hosting.references import RRef
from ps_wire.errors import ForeignHandleError, UnavailableError

if TYPE_CHECKING:
    from ps_service.passes.records import NestedPass
    from ps_wire.refs import ContextId, Ref
    from ps_wire.v1.operations_pb2 import Member


class Foreign(NamedTuple):
    """A handle of another owner's object that leaves with an answer.

    Attributes:
        ref: What it refers to.
        held: Keeps the object alive, until the answer is confirmed.
        token: Stands for it in the graph here, if what it refers to has a history there.
    """

    ref: Ref
    held: Any
    token: torch.Tensor | None


class Peers(Protocol):
    """How hosted code meets other owners. Everything but `nested pass` may wait for them."""

    def nested_pass(self, context: ContextId) -> NestedPass | None:
        """Begins what one pass does on other owners; None if there are none."""

    def local(self, rref: RRef) -> Any:
        """What hosted code shall see of a handle of an object here."""

    def foreign(self, ref: Ref, history: ContextId | None) -> Any:
        """What hosted code shall see of a handle of another owner's object.

        Args:
            ref: What it refers to.
            history: The pass in which the object was computed, if gradients go back through it.

        Raises:
            ForeignHandleError: That owner cannot be found from here.
        """

    def departing(self, value: Any, context: ContextId | None) -> RRef | Foreign | None:
        """What a value among the results of hosted code refers to, if it is a reference.

        Args:
            value: Any value.
            context: The pass in which the call is recorded, if it is.
        """

    def find(self, name: str, id: int | None, seconds: float) -> Member:
        """Asks the directory for a member, by name or else by number.

        Raises:
            UnknownNameError: It does not know it.
            UnavailableError: There is no directory but this owner's own.
        """

    @property
    def keeps_directory(self) -> bool:
        """Whether this owner's own directory is the one of its group."""

    @property
    def borrowed(self) -> int:
        """How many objects of other owners hosted code holds."""


class Alone:
    """The peers of an owner that has none."""

    keeps_directory = True
    borrowed = 0

    def nested_pass(self, context: ContextId) -> None:
        return None

    def local(self, rref: RRef) -> RRef:
        return rref

    def foreign(self, ref: Ref, history: ContextId | None) -> Any:
        raise ForeignHandleError(
            f"the handle {ref} belongs to owner {ref.owner!r}, which cannot be found from here: "
            "start this owner with --directory"
        )

    def departing(self, value: Any, context: ContextId | None) -> RRef | None:
        return value if isinstance(value, RRef) else None

    def find(self, name: str, id: int | None, seconds: float) -> Member:
        raise UnavailableError("this owner keeps its own directory")
