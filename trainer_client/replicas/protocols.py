"""What replicas need of optimizers, of the passes that their gradients join, and of the handle of their module; and
what is checked of these before a push or a local step."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    import torch

    from ps_wire.codec.payload import PayloadReader, PayloadWriter
    from ps_wire.refs import Ref
    from ps_wire.reported import Reported
    from ps_wire.v1.frames_pb2 import Frame, Reply
    from ps_wire.v1.operations_pb2 import AddGradientsReply, ContextId
    from ps_wire.v1.values_pb2 import Handle
    from trainer_client.pending import Pending
    from trainer_client.session.in_flight import InFlightRequest
    from trainer_client.session.session import Session
    from trainer_client.session.stepped import Stepped

T = TypeVar("T")

Added = Mapping[str, Sequence["InFlightRequest[AddGradientsReply]"]]
"""The requests that add gradients to a pass, by owner."""


class Push(NamedTuple):
    """A push that is ready to be sent. `withdraw` is called if it will not be."""

    send: Callable[[], Pending[Any]]
    withdraw: Callable[[], None]


class Source(Protocol):
    """A module on an owner, of which replicas are made: a `RemoteModule`."""

    @property
    def ref(self) -> Ref: ...
    @property
    def session(self) -> Session: ...
    def parameters(self) -> Sequence[Any]: ...


class OpenPass(Protocol):
    """A pass that has gradients of replicas, or gets them: a `Context`."""

    message: ContextId
    steps: dict[Any, Pending[Any] | None]
    is_told: bool

    @property
    def unfinished(self) -> Sequence[Pending[None]]: ...
    def check(self) -> None: ...
    def gradient(self, leaf: torch.Tensor) -> torch.Tensor | None: ...
    def drop(self, leaves: Iterable[torch.Tensor]) -> None: ...
    def reserve(self, session: Session) -> Any: ...
    def waits_for(self, work: Pending[T]) -> Pending[T]: ...
    def change_gradients(self, work: Coroutine[Any, Any, T]) -> Pending[T]: ...
    def hand_over(self) -> OpenPass: ...
    def close(self) -> None: ...


class OwnersPart(Protocol):
    """The part of an optimizer that runs on one owner: a `RemoteOptimizer`."""

    name: Handle

    def push(
        self, frame: Frame, payload: PayloadWriter, read: Callable[[Stepped, Reply, PayloadReader], T]
    ) -> Pending[T]: ...


class Pushable(Protocol):
    """An optimizer that steps replicas, maybe together with tables; see `PushScaling`. A pass is a `Context`.
    `of_parameters` is the optimizer of what is no table; None if there are only tables."""

    @property
    def of_parameters(self) -> OwnersOptimizer | None: ...
    async def unscale_pushed(
        self, context: Any, scaler: torch.amp.GradScaler, leaves: Sequence[torch.Tensor]
    ) -> None: ...
    async def are_finite(self, context: Any, scaler: torch.amp.GradScaler, leaves: Sequence[torch.Tensor]) -> bool: ...
    async def step_pushed(
        self,
        context: Any,
        added: Added,
        then: Callable[[str, Sequence[InFlightRequest[Any]]], None],
        values: Mapping[str, Reported],
    ) -> Stepped: ...


class OwnersOptimizer(Pushable, Protocol):
    """An optimizer of what is no table: a `DistributedOptimizer`."""

    has_local_part: bool

    @property
    def remotes(self) -> Mapping[str, OwnersPart]: ...
    @property
    def sessions(self) -> Sequence[Session]: ...
    def part_on(self, session: Session) -> OwnersPart: ...


def has_counted() -> InvalidArgumentError:
    """The error for a push of local steps that the owner leaves out: one before it, whose outcome was open, counts."""
    return InvalidArgumentError(
        "the last push has failed here, and its difference has counted, so that this one, which has it too, does not: "
        "call pull() of the replica first, which takes over what the owner has"
    )


def check_backward(context: OpenPass) -> None:
    """Raises `InvalidArgumentError` if a backward of the pass, or a change of its gradients, has not ended, or has
    failed and the program does not know."""
    if context.unfinished:
        raise InvalidArgumentError(
            "a backward of this context, or clipping or unscaling, has not ended, or has failed and was not awaited: "
            "await ctx.backward(loss), ctx.clip_grad_norm(…) and unscale first"
        )


def check_gradients(parameters: Sequence[torch.Tensor], current: OpenPass | None) -> None:
    """Raises `InvalidArgumentError` if a push or a step would do nothing, because the open pass has all gradients."""
    if current is None or any(each.grad is not None for each in parameters):
        return
    if any(current.gradient(each) is not None for each in parameters):
        raise InvalidArgumentError(
            "no parameter of the replica has a .grad, and this would do nothing: after ctx.backward(loss) the "
            "gradients belong to the pass. Give it with context=ctx, or call loss.backward() if only the replica is "
            "used"
        )


def of_parameters(opt: Pushable) -> OwnersOptimizer | None:
    """The part of an optimizer on owners that steps parameters and no tables, if it has one."""
    if not hasattr(opt, "of_parameters"):
        raise InvalidArgumentError(
            f"a push needs an optimizer on the owner, as Client.optimizer() returns, not a {type(opt).__name__}; "
            "to step the replica itself with an optimizer of this process, see Client.local_steps()"
        )
    return opt.of_parameters
