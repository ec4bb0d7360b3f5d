"""Gate: which requests an owner still takes up when it is about to stop."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

from ps_wire.refs import ContextId

if TYPE_CHECKING:
    from ps_service.passes.contexts import Contexts


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
        ENDING = enum.auto()
        """For what helps those to an end who have begun."""
        SHUT = enum.auto()
        """For what changes nothing and hands nothing out."""

    # None of these begins anything.
    _ENDING: Final = frozenset({"backward", "scale", "unscale", "step", "end_context", "release"})

    def __init__(self, contexts: Contexts) -> None:
        self.state = Gate.State.OPEN
        self._contexts = contexts

    def admits(self, trainer: bytes, operation: str, request: Any, mutates: bool, depth: int = 0) -> bool:
        """Whether a request is taken up now.

        Args:
            trainer: Who asks.
            operation: Its name.
            request: Its message.
            mutates: Whether it changes anything.
            depth: In how many requests it is nested: who waits for it has been taken up already, somewhere.
        """
        if self.state is Gate.State.OPEN:
            return True
        if self.state is Gate.State.SHUT:
            # What is fetched may hold references, which would be granted behind the back of a checkpoint.
            return not mutates and operation != "fetch"
        return depth > 0 or not mutates or operation in self._ENDING or self._belongs(trainer, operation, request)

    def _belongs(self, trainer: bytes, operation: str, request: Any) -> bool:
        """Whether it may be part of a pass that has come here before."""
        if operation == "call" and request.HasField("context"):
            return ContextId.from_message(request.context) in self._contexts
        # Somebody who is in a pass may make or change something before it goes on.
        return self._contexts.used_by({trainer})
