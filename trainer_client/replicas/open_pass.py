"""What replicas need of the passes that their gradients join."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from ps_wire.v1.operations_pb2 import ContextId
    from trainer_client.pending import Pending
    from trainer_client.session.session import Session

T = TypeVar("T")


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
