"""What replicas need of optimizers, of the passes that their gradients join, and of the handle of their module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    import torch

    from ps_wire.codec.payload import PayloadReader, PayloadWriter
    from ps_wire.refs import Ref
    from ps_wire.reported import Reported
    from ps_wire.v1.frames_pb2 import Frame, Reply
    from ps_wire.v1.operations_pb2 import ContextId
    from ps_wire.v1.values_pb2 import Handle
    from trainer_client.pending import Pending
    from trainer_client.session.in_flight import InFlightRequest
    from trainer_client.session.session import Session
    from trainer_client.session.stepped import Stepped


T = TypeVar("T")

Added = Mapping[str, Sequence["InFlightRequest[None]"]]
"""The requests that add gradients to a pass, by owner."""


class Push(NamedTuple):
    """A push that is ready to be sent. `withdraw` is called if it will not be."""

    send: Callable[[], Pending[Any]]
    withdraw: Callable[[], None]


class Source(Protocol):
    """A module on an owner, of which replicas are made; see `RemoteModule`."""

    ref: Ref

    @property
    def session(self) -> Session:
        """The session with the owner."""

    def parameters(self) -> Sequence[Any]:
        """Handles of its parameters."""


class OpenPass(Protocol):
    """A pass that has gradients of replicas, or gets them; see `Context`."""

    message: ContextId

    @property
    def unfinished(self) -> Sequence[Pending[None]]:
        """The backwards that have not ended."""

    def check(self) -> None:
        """Checks that the pass is open."""

    def gradient(self, leaf: torch.Tensor) -> torch.Tensor | None:
        """The gradient of a local leaf, if it has one."""

    def drop(self, leaves: Iterable[torch.Tensor]) -> None:
        """Drops the gradients of local leaves."""

    def reserve(self, session: Session) -> Any:
        """Makes an owner take part in the pass."""

    def waits_for(self, work: Pending[T]) -> Pending[T]:
        """The block will end after this. Returns it."""

    def hand_over(self) -> OpenPass:
        """Makes a new object stand for the pass, which outlives the block."""

    def close(self) -> None:
        """Ends the pass, and tells the owners."""


class OwnersPart(Protocol):
    """The part of an optimizer that runs on one owner; see `RemoteOptimizer`."""

    name: Handle

    def push(
        self, frame: Frame, payload: PayloadWriter, read: Callable[[Stepped, Reply, PayloadReader], T]
    ) -> Pending[T]:
        """Sends the gradients of a replica."""


class Pushable(Protocol):
    """An optimizer that steps replicas, maybe together with tables. A pass is a `Context`."""

    @property
    def of_parameters(self) -> OwnersOptimizer | None:
        """The optimizer of what is no table; None if there are only tables."""

    async def unscale_pushed(self, context: Any, scaler: torch.amp.GradScaler, leaves: Sequence[torch.Tensor]) -> None:
        """As `PushScaling.unscale_pushed`."""

    async def are_finite(self, context: Any, scaler: torch.amp.GradScaler, leaves: Sequence[torch.Tensor]) -> bool:
        """As `PushScaling.are_finite`."""

    async def step_pushed(
        self,
        context: Any,
        added: Added,
        then: Callable[[str, Sequence[InFlightRequest[Any]]], None],
        values: Mapping[str, Reported],
    ) -> Stepped:
        """As `DistributedOptimizer.step_pushed`."""


class OwnersOptimizer(Pushable, Protocol):
    """An optimizer of what is no table; see `DistributedOptimizer`."""

    has_local_part: bool

    @property
    def remotes(self) -> Mapping[str, OwnersPart]:
        """Its parts on owners, by the owner's name."""

    @property
    def sessions(self) -> Sequence[Session]:
        """The sessions with the owners of its parts."""

    def part_on(self, session: Session) -> OwnersPart:
        """Its part on one owner, if it has no other part."""
