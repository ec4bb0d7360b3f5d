"""Gate: which requests an owner still takes up when it is about to stop."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from ps_wire.refs import ContextId

if TYPE_CHECKING:
    from ps_service.passes.contexts import Contexts
    from ps_wire.operations import OperationInfo


class Gate:
    """Decides what is taken up.

    An owner that keeps a checkpoint lets the passes that are under way here come to their end, and leaves everything
    else to itself after its next start: trainers send again what was not answered.

    Args:
        contexts: The open passes.

    Attributes:
        state: How far it is open.
    """

    class State(enum.Enum):
        """How far a gate is open."""

        OPEN = enum.auto()
        """For everything."""
        DRAINING = enum.auto()
        """For what helps those to an end who have begun."""
        STOPPED = enum.auto()
        """For what changes nothing and hands nothing out."""

    def __init__(self, contexts: Contexts) -> None:
        self.state = Gate.State.OPEN
        self._contexts = contexts

    def admits(self, trainer: bytes, operation: OperationInfo, request: Any, depth: int = 0) -> bool:
        """Whether a request is taken up now.

        Args:
            trainer: The trainer that asks.
            operation: What it asks for.
            request: The operation's message.
            depth: In how many requests it is nested. The outermost has been taken up already, on some owner.
        """
        if self.state is Gate.State.OPEN:
            return True
        if self.state is Gate.State.STOPPED:
            # References that a checkpoint does not know must not be handed out.
            return not operation.mutates and not operation.grants
        return depth > 0 or not operation.mutates or operation.ends_pass or self._belongs(trainer, operation, request)

    def _belongs(self, trainer: bytes, operation: OperationInfo, request: Any) -> bool:
        """Whether it may be part of a pass that has come here before."""
        if operation.begins_pass and request.HasField("context"):
            return ContextId.from_message(request.context) in self._contexts
        # A trainer that is in a pass may make or change something before it goes on.
        return self._contexts.used_by({trainer})
