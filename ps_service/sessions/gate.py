"""Decides which requests an owner still accepts while it drains."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from ps_wire.refs import ContextId

if TYPE_CHECKING:
    from ps_service.passes.contexts import Contexts
    from ps_wire.operations import OperationInfo


class Gate:
    """Decides which requests are accepted. Trainers send the others again after the next start of the owner.

    One with a data directory lets its open passes end, and accepts nested requests and those that change nothing.
    """

    class State(enum.Enum):
        """What a gate lets through."""

        OPEN = enum.auto()
        """Every request is accepted."""
        DRAINING = enum.auto()
        """Requests are accepted that may belong to an open pass."""
        STOPPED = enum.auto()
        """Requests are accepted that change nothing and return no references."""
        CLOSED = enum.auto()
        """No request is accepted: a later start of the owner's state has taken its place."""

    def __init__(self, contexts: Contexts) -> None:
        self.state = Gate.State.OPEN
        # Why it is closed.
        self.why = ""
        self._contexts = contexts

    def close(self, why: str) -> None:
        """Accepts nothing from now on."""
        self.state, self.why = Gate.State.CLOSED, why

    def admits(self, trainer: bytes, operation: OperationInfo, request: Any, depth: int = 0) -> bool:
        """Whether a request is accepted now. The outermost of nested requests was taken up already, on some owner."""
        if self.state is Gate.State.OPEN:
            return True
        if self.state is Gate.State.CLOSED:
            return False
        if self.state is Gate.State.STOPPED:
            # References that a checkpoint does not know must not be handed out.
            return not operation.mutates and not operation.grants
        return depth > 0 or not operation.mutates or operation.ends_pass or self._belongs(trainer, operation, request)

    def _belongs(self, trainer: bytes, operation: OperationInfo, request: Any) -> bool:
        """Whether it may belong to a pass that is open here."""
        if operation.begins_pass and request.HasField("context"):
            return ContextId.from_message(request.context) in self._contexts
        # A trainer that is in a pass may make or change something before it goes on.
        return self._contexts.used_by({trainer})
