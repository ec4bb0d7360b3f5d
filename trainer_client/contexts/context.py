"""The context of one forward/backward/step pass over any number of owners."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ps_wire.errors import ContextEndedError, InvalidArgumentError
from ps_wire.runtime.failures import PassFailures
from trainer_client.contexts.backwards import Backwards, Start, roots_of
from trainer_client.contexts.block import Block, PassSpan, after, end_freed, tell_end, tell_untrained
from trainer_client.contexts.closing import Closing, Part, Stepping
from trainer_client.contexts.gradients import check_norms, clip, gradients
from trainer_client.graph.current import Openings, current_context, entered
from trainer_client.graph.nodes import ROOT, WayBack
from trainer_client.graph.recorder import RecordedCall, RecordingPass, Reserved, token_of
from trainer_client.handles.parameters import RemoteParameter, some_parameters
from trainer_client.pending import Pending
from trainer_client.session.losses import lost_part
from trainer_client.session.step_mistakes import without_step

if TYPE_CHECKING:
    from contextvars import Token

    from ps_wire.attempts import Attempt
    from ps_wire.numerics.seeds import Seeds
    from ps_wire.refs import ContextId
    from ps_wire.reported import Reductions, Values
    from ps_wire.runtime.latency import Latency
    from ps_wire.tracing import Tracing
    from ps_wire.v1.operations_pb2 import EndContextRequest
    from trainer_client.contexts.gradients import Reach
    from trainer_client.graph.leaves import LocalGradients
    from trainer_client.graph.running_backward import LocalBackward
    from trainer_client.session.in_flight import InFlightRequest
    from trainer_client.session.session import Session

T = TypeVar("T")


class Context(Block):
    """One pass: calls inside its block are recorded, and it holds their gradients.

        async with ps.context() as ctx:
            loss = F.nll_loss(await net(x), y)
            await ctx.backward(loss)
            await opt.step(ctx)

    Gradients are kept in the context, on the owners and here; `.grad` of local parameters is not changed. They
    accumulate over several backwards, and are freed at the end of the block, which waits for backwards and steps.

    Attributes:
        id: Its id on every owner.
        attempt: Which steps of parameters of this process other attempts have made; None if it is not run again.
        ended: Whether it can be used no more.
        finished: Whether a step has ended it, and its block is still open. Calls in the block are not recorded then.
        looked_up: The tables that it has looked up in and may train, with the parts of their optimizers.
        stepped: Object ids of the parts of optimizers that it has stepped.
        steps: The optimizers that have stepped with it, or began to, with the results that are not known to have come.
        root: The input, in the graph, of calls without inputs that require grad.
        seeds: Makes the seeds of its calls; None for calls without seeds.
    """

    root: torch.Tensor = ROOT
    joins_any_client = False
    """Whether sessions of any client may take part."""
    is_told = False
    """Whether the program was told that one optimizer steps with it twice."""

    def __init__(
        self,
        id: ContextId,
        loop: asyncio.AbstractEventLoop,
        reach: Reach | None = None,
        seeds: Seeds | None = None,
        openings: Openings | None = None,
        gradients: LocalGradients | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._begun = []
        self.span = None if tracing is None else PassSpan(tracing, id)
        self._openings = openings
        self._reach = reach
        self.seeds = seeds
        self.id = id
        self.message = id.to_message()
        self.attempt: Attempt | None = None
        self.failures = PassFailures()
        self.ended = self.finished = False
        self.looked_up: dict[str, Sequence[Part]] = {}
        self.stepped: set[str] = set()
        self.steps: dict[Any, Pending[Any] | None] = {}
        self._loop = loop
        self._lock = threading.Lock()
        self._calls = 0
        self._sessions: dict[str, Session] = {}
        # By owner, the number of lost sessions when the pass first called it.
        self._losses: dict[str, int] = {}
        self._backwards = Backwards(loop, gradients)
        self._token: Token[RecordingPass | None] | None = None
        if openings is not None:
            # What ends it on its owners if it is freed before its end must not refer to it.
            openings.opened(self, partial(end_freed, loop, self.message, self._sessions))

    # Recording

    def record(
        self,
        session: Session,
        inputs: Sequence[torch.Tensor],
        tokens: Sequence[torch.Tensor] = (),
        latency: Latency | None = None,
        reserved: Reserved | None = None,
    ) -> RecordedCall:
        """Records a call in the graph, maybe in a reserved place; see `RecordedCall`. Raises as `check`."""
        with self._lock:
            self.check(session)
            number, place = reserved or self._reserve(session)
        call = WayBack(self, session, number, place, inputs, latency)
        return RecordedCall(call, token_of(call, self.root, inputs, tokens) if inputs or tokens else self.root)

    def reserve(self, session: Session) -> Reserved:
        """Reserves the number and place of a call that is recorded later. Raises as `check`."""
        with self._lock:
            self.check(session)
            return self._reserve(session)

    def _reserve(self, session: Session) -> Reserved:
        """The number of the next call, and its place: the numbers of the calls that it is nested in, and its own."""
        self._calls += 1
        # As `join` does, without the cost of a call.
        self._sessions[session.owner] = session
        self._losses.setdefault(session.owner, session.losses)
        return self._calls, (self._calls,)

    def join(self, session: Session) -> None:
        """An owner takes part in the pass."""
        self._sessions[session.owner] = session
        self._losses.setdefault(session.owner, session.losses)

    def check(self, *sessions: Session) -> None:
        """Checks that the pass is open, no owner has lost its part of it, and these sessions may take part."""
        if self.ended:
            raise ContextEndedError(
                f"context {self.id} has ended, with its block, with backward(..., step=...) or with a push that has an "
                "overlap; open a new one for a new pass"
            )
        for owner, losses in self._losses.items():
            # The owner would take this for a pass without gradients there, and skip the step.
            if self._sessions[owner].losses != losses:
                raise lost_part(owner, self.id)
        for session in sessions:
            if session.trainer != self.id.trainer and not self.joins_any_client:
                raise InvalidArgumentError(
                    "the handle and the context belong to different clients; connect to all owners of a pass with one "
                    "connect(address, address, ...)"
                )
            if session.lost_pass >= self.id.number and session.trainer == self.id.trainer:
                raise lost_part(session.owner, self.id)  # hosted code may have called it

    # Backward

    def backward(
        self,
        roots: torch.Tensor | Sequence[torch.Tensor],
        gradients: torch.Tensor | Sequence[torch.Tensor | None] | None = None,
        retain_graph: bool = False,
        step: Stepping | Sequence[Stepping] | None = None,
        *,
        values: Values = None,
        reduce: Reductions = "mean",
    ) -> Pending[Any]:
        """Propagates from one or more roots, through local and remote parts. May also step, and end the pass.

        Args:
            roots: One tensor or several; usually one loss with one element.
            gradients: Gradients of the roots, in their shapes; None only for roots with one element.
            retain_graph: Whether to keep the graph for another backward.
            step: An optimizer, or several. They step in this order, once the backward has succeeded on all owners and
                here. Then the pass ends, unless `retain_graph` is true: its gradients are freed, and later calls in the
                block are like calls outside of it. If a step raises, the pass does not end, and its gradients are those
                of a backward without `step`. With a log on an owner, all owners check the gradients for all
                of them before the first steps.
            values, reduce: What the step reports, as in `DistributedOptimizer.step`. Of several optimizers the first
                counts it. A step with values is a request of its own.

        Returns:
            None; with `step`, what `step` of the optimizer returns, in a list if there are several.

        Raises:
            ContextEndedError: The block was left, or the pass has ended with a step.
            InvalidArgumentError: `step` is no optimizer, or one of another client; or there are values and no step, or
                nobody can count them.
            PsError: An owner failed; or clipping or a backward before has, unread. Local leaves get no gradient; those
                that other owners have added stay; nothing has stepped. A step raises as `DistributedOptimizer.step`.
            RuntimeError: Torch raised it, as in a local backward.
        """
        roots = (roots,) if isinstance(roots, torch.Tensor) else roots_of(roots)
        closing = None
        if step is not None:
            closing = Closing(self, step, not retain_graph, values, reduce)
        elif values:
            raise without_step()
        else:
            self.check()
        return self.waits_for(self._backwards.begin(self, Start(roots, gradients, retain_graph, closing)))

    def propagate(
        self,
        roots: torch.Tensor | Sequence[torch.Tensor],
        gradients: torch.Tensor | Sequence[torch.Tensor | None] | None = None,
        retain_graph: bool = False,
        step: Stepping | Sequence[Stepping] | None = None,
        *,
        values: Values = None,
        reduce: Reductions = "mean",
    ) -> Any:
        """Like `backward`, in this thread, which must not be that of the client's event loop."""
        roots = (roots,) if isinstance(roots, torch.Tensor) else roots_of(roots)
        if values and step is None:
            raise without_step()
        closing = None if step is None else Closing(self, step, not retain_graph, values, reduce)
        self._backwards.run(self, Start(roots, gradients, retain_graph, closing))
        return None if closing is None else closing.finish()

    @property
    def current_backward(self) -> LocalBackward | None:
        """The backward that runs in this thread. In an owner, another may run that of a call that reaches this pass."""
        backwards = self._backwards
        return backwards.running if backwards.thread == threading.get_ident() else None

    @property
    def unfinished(self) -> Sequence[Pending[None]]:
        """The begun backwards and changes of gradients that have not ended, or have failed and nobody knows."""
        return self._backwards.unfinished

    def sent_to(self, session: Session) -> Sequence[InFlightRequest[Any]]:
        """The requests of the unfinished backward, if it has sent them all, and all to the owner of this session; none
        while gradients are being changed."""
        return self._backwards.sent_to(session)

    # Gradients

    @property
    def local(self) -> LocalGradients:
        """The gradients of local leaves."""
        return self._backwards.gradients

    def gradient(self, leaf: torch.Tensor) -> torch.Tensor | None:
        """The gradient of a local leaf in this pass, if it has one."""
        return self.local.of(leaf)

    def scale(self, leaves: Iterable[torch.Tensor], factor: float) -> None:
        """Multiplies the gradients of local leaves."""
        self.local.scale(leaves, factor)

    def drop(self, leaves: Iterable[torch.Tensor]) -> None:
        """Drops the gradients of local leaves."""
        self.local.drop(leaves)

    def get_gradients(self) -> Pending[dict[RemoteParameter | torch.Tensor, torch.Tensor]]:
        """The gradients of this pass, by handle for remote parameters and by tensor for local ones.

        Returns:
            Each gradient has the shape and dtype of its parameter; gradients of remote parameters are on the CPU.

        Raises:
            PsError, RuntimeError: A backward, clipping or unscaling that was begun before has failed.
        """
        self.check()
        return self.behind_backwards(
            gradients(self.message, self.local, self._sessions, self._reach, RemoteParameter.bare)
        )

    def clip_grad_norm(
        self,
        parameters: RemoteParameter | torch.Tensor | Iterable[RemoteParameter | torch.Tensor],
        max_norm: float,
        norm_type: float = 2.0,
    ) -> Pending[torch.Tensor]:
        """Scales the gradients of this pass so that their norm over all owners and local parameters is at most
        `max_norm`, like `torch.nn.utils.clip_grad_norm_`.

        Args:
            parameters: Handles of remote parameters, and local parameters, or one. Without a gradient they are skipped.
            max_norm: The largest norm.
            norm_type: The exponent of the norm; infinity for the largest absolute value.

        Returns:
            The norm before, a scalar float32 tensor.

        Raises:
            InvalidArgumentError: `max_norm` or `norm_type` is not positive.
            PsError, RuntimeError: A backward, clipping or unscaling that was begun before has failed.
        """
        parameters = some_parameters("clip_grad_norm()", parameters)
        self.check(*(each.session for each in parameters if not isinstance(each, torch.Tensor)))
        check_norms(max_norm, norm_type)
        return self.change_gradients(clip(self.message, self.local, parameters, max_norm, norm_type, self._sessions))

    def behind_backwards(self, work: Coroutine[Any, Any, T]) -> Pending[T]:
        """Runs a coroutine once backwards and changes of gradients that were begun have succeeded. The block waits for
        it."""
        return self.waits_for(Pending.run(self._loop, after(self._loop, list(self.unfinished), work)))

    def change_gradients(self, work: Coroutine[Any, Any, T]) -> Pending[T]:
        """Like `behind_backwards`, for a coroutine that changes gradients. What is begun later waits for it, too."""
        return self._backwards.change(self.behind_backwards(work))

    # The block

    @property
    def sessions(self) -> list[Session]:
        """The sessions with the owners that take part so far."""
        with self._lock:
            return list(self._sessions.values())

    def enter(self) -> None:
        """Begins the block; `RuntimeError` if another is open in this task or thread."""
        outer = current_context()
        if outer is not None:
            raise RuntimeError(f"Already have an autograd context id for this thread: {outer.id}; contexts do not nest")
        if self.ended or self._losses:
            self.check()
        self._token = entered.set(self)
        if self.span is not None:
            self.span.begin()

    def end(self, over: tuple[int, Sequence[int]] | None = None, error: BaseException | None = None) -> None:
        """Ends the block, maybe with an exception. Other contexts below the number in `over` are over, but for some."""
        if self.span is not None:
            self.span.end(error)
        if self._token is not None:
            entered.reset(self._token)
            self._token = None
        if error is None and self.stepped and self.looked_up:
            tell_untrained(self.looked_up, self.stepped)
        # So that what has failed, and nobody has read, is reported.
        self._begun, self.steps, self._backwards.changes = [], {}, ()
        self.failures.end(error)
        if not self.ended:
            self.close(over)
        self.finished = False

    def close(self, over: tuple[int, Sequence[int]] | None = None, told: Session | None = None) -> None:
        """Ends the pass, and tells the owners, but for one that is `told`; does nothing if it has ended already."""
        with self._lock:
            if self.ended:
                return
            self.ended = True
            sessions = list(self._sessions.values())
        if told in sessions:
            sessions.remove(told)
        if self._openings is not None:
            self._openings.remove(self)
        if sessions:
            over = over if self._openings is None else self._openings.ended_with(self)
            tell_end(self.message, sessions, over or (0, ()))
        if self._backwards.store is not None:
            self._backwards.store.clear()

    def finish(self, told: Session | None = None) -> None:
        """Ends the pass inside of its block, after a step. Later calls in the block are like calls outside of it."""
        self.finished = self._token is not None
        self.close(told=told)

    def hand_over(self) -> Context:
        """Makes a new object stand for the pass, which ends when that is closed or freed; raises as `check`. For the
        program it is over: calls in the rest of the block are like calls outside, and its end tells owners nothing."""
        self.check()
        # It takes the place of this one among the open contexts, so that the end of this one does not end the pass.
        other = Context(self.id, self._loop, self._reach, None, self._openings, self.local)
        other.message.CopyFrom(self.message)
        other.attempt, other.joins_any_client = self.attempt, self.joins_any_client
        # Only the push knows which tables are stepped: the block tells nothing of them.
        other.looked_up, other.stepped, self.looked_up = self.looked_up, self.stepped, {}
        with self._lock:
            other._calls, other._losses = self._calls, self._losses
            other._sessions.update(self._sessions)
            self.ended = True
        self.finished = self._token is not None
        return other

    def write_end(self, request: EndContextRequest) -> None:
        """Asks an owner to end the pass, in a request that does more."""
        if self._openings is not None:
            request.all_before, but = self._openings.ended_with(self)
            request.but.extend(but)
        else:
            request.SetInParent()

    def __repr__(self) -> str:
        state = "ended" if self.ended else f"{self._calls} calls on {', '.join(self._sessions) or 'no owner'}"
        return f"<Context {self.id}, {state}>"
