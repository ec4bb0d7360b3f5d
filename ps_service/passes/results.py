"""Records a call in its context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ps_service.group.peers import Foreign
from ps_service.hosting.histories import History
from ps_service.passes.records import Record
from ps_wire.codec.trees import leaves_in, parts_of, tensors_in

if TYPE_CHECKING:
    from ps_service.group.peers import NestedPass
    from ps_service.hosting.leaves import Leaf
    from ps_service.hosting.references import RRef
    from ps_service.memory.held import Share
    from ps_service.passes.arguments import Arguments
    from ps_service.passes.entry import GraphEntry
    from ps_service.passes.invocation import Recording
    from ps_service.passes.pass_host import PassHost
    from ps_wire.runtime.latency import Latency


class Results:
    """Records one call and its results.

    `nested_pass` is that of the context; None if there are no other owners. `held` counts the bytes of the pass.

    Raises:
        ContextEndedError, ContextLostError, SessionLostError: The context has ended, or this owner has lost it.
    """

    def __init__(self, engine: PassHost, recording: Recording, arguments: Arguments) -> None:
        self._peers = engine.membership.peers
        self._context = engine.contexts.open(recording.context, recording.call.caller)
        self._call = recording.call
        self.held = self._context.held
        self._arguments = arguments
        self.nested_pass: NestedPass | None = None
        if engine.membership.joined:
            self.nested_pass = self._context.nested_pass(self._peers.nested_pass)

    def record(
        self,
        entry: GraphEntry | None,
        leaves: Sequence[Leaf],
        steps: Sequence[int],
        latency: Latency | None,
        is_module: bool,
        result: Any,
        others: bool = True,
        computed: Any = None,
        shares: Sequence[Share] = (),
    ) -> Any:
        """Keeps the state that the call's backward needs, and returns the result.

        The arguments are those of the `Record`. For a call of a module (`is_module`) what torch has saved is counted by
        its frame, but for the `shares` given here. Of other code it is not known. `computed` is what was computed, if
        the result is a copy of it that is sent and freed.

        Raises:
            ContextEndedError: The context ended while the call ran.
        """
        # Each once, as in the reply.
        found: dict[int, torch.Tensor] = {}
        references: list[RRef | Foreign] = []
        for leaf in (result,) if isinstance(result, torch.Tensor) else leaves_in(result):
            if isinstance(leaf, torch.Tensor):
                found.setdefault(id(leaf), leaf)
            elif (reference := self._peers.departing(leaf, self._context.id)) is not None:
                references.append(reference)
        outputs = list(found.values())
        tokens: list[int] = []
        for reference in references:
            if isinstance(reference, Foreign):
                if reference.token is not None:
                    tokens.append(len(outputs))
                    outputs.append(reference.token)
            elif reference.hosted is None:
                self._keep_history(reference, outputs)
        called = self.nested_pass if self.nested_pass is not None and self.nested_pass.others() else None
        if called is not None:
            latency = None  # its backward may wait for other owners
        if not is_module:
            # For code without hosted modules it is not known which tensors torch saves: mostly inputs and results.
            # Storages count by address, so one that is freed at once must not: another would get its address uncounted.
            saved = outputs if computed is None else tensors_in(computed)
            shares = self.held.shares([*self._arguments.entering, *(each for each in saved if each.requires_grad)])
        record = Record(
            outputs,
            entry,
            len(self._arguments.wanting),
            leaves,
            steps,
            latency,
            self._arguments.nbytes,
            self._arguments.kept,
            tokens,
            called,
            others,
        )
        record.shares = shares
        self._context.add(self._call, record)
        return result

    def _keep_history(self, reference: RRef, outputs: list[torch.Tensor]) -> None:
        """Lets later calls propagate through a result that stays on this owner."""
        value = reference.local_value()
        if not any(isinstance(part, torch.Tensor) and part.grad_fn is not None for part in parts_of(value)):
            return
        positions: list[int | None] = []
        for tensor in tensors_in(value):
            # A leaf is the same tensor for all calls, and needs none.
            positions.append(None if tensor.grad_fn is None else len(outputs))
            if tensor.grad_fn is not None:
                outputs.append(tensor)
        reference.history = History(self._context.id, self._call, tuple(positions))
