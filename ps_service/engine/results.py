"""Results: what a recorded call leaves in its context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ps_service.engine.arguments import Arguments
from ps_service.engine.engine import Engine
from ps_service.engine.peers import Foreign
from ps_service.state.entry import Entry
from ps_service.state.objects import History
from ps_service.state.pace import Pace
from ps_service.state.records import Leaf, Passage, Record
from ps_service.state.rrefs import RRef
from ps_wire.refs import CallKey, ContextId
from ps_wire.trees import leaves_in, tensors_in


class Results:
    """Takes down what one call returns.

    Args:
        engine: The owner.
        context: The pass.
        call: Who made the call, and its number.
        arguments: What it was called with.

    Attributes:
        passage: What the pass does on other owners, if there are any.
        held: Where counts what the pass holds.

    Raises:
        ContextEndedError: The context has ended.
    """

    def __init__(self, engine: Engine, context: ContextId, call: CallKey, arguments: Arguments) -> None:
        self._peers = engine.peers
        self._context = engine.contexts.open(context, call.caller)
        self._call = call
        self.held = self._context.held
        self._arguments = arguments
        self.passage: Passage | None = self._context.passage(engine.peers.passage)

    def record(
        self, entry: Entry | None, leaves: Sequence[Leaf], pace: Pace | None, is_module: bool, result: Any
    ) -> Any:
        """Keeps everything the call's backward will need, and returns the result.

        Raises:
            ContextEndedError: The context ended while the call ran.
        """
        outputs: list[torch.Tensor] = []
        references: list[RRef | Foreign] = []
        for leaf in leaves_in(result):
            if isinstance(leaf, torch.Tensor):
                outputs.append(leaf)
            elif (reference := self._peers.departing(leaf, self._context.id)) is not None:
                references.append(reference)
        tokens: list[int] = []
        for reference in references:
            if isinstance(reference, Foreign):
                if reference.token is not None:
                    tokens.append(len(outputs))
                    outputs.append(reference.token)
            elif reference.hosted is None:
                self._keep_history(reference, outputs)
        called = self.passage if self.passage is not None and self.passage.others() else None
        if called is not None:
            pace = None  # it may wait for others
        shares = []
        if not is_module:
            # Of code that has borrowed no module it is not known what torch saves: inputs and results, mostly.
            results = [output for output in outputs if output.requires_grad]
            shares = self.held.shares([*self._arguments.entering, *results])
        record = Record(
            outputs, entry, len(self._arguments.wanting), leaves, pace, self._arguments.kept, tokens, called, is_module
        )
        record.shares = shares
        self._context.add(self._call, record)
        return result

    def _keep_history(self, reference: RRef, outputs: list[torch.Tensor]) -> None:
        """What stays here can be propagated through by the calls that use it."""
        positions: list[int | None] = []
        for tensor in tensors_in(reference.local_value()):
            positions.append(len(outputs) if tensor.requires_grad else None)
            if tensor.requires_grad:
                outputs.append(tensor)
        if any(position is not None for position in positions):
            reference.history = History(self._context.id, self._call, tuple(positions))
