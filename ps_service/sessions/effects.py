"""What requests change, for the durable log. An owner without one collects nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from google.protobuf.message import Message

    from ps_service.hosting.objects import HostedObject
    from ps_service.sessions.reply_cache import Answer
    from ps_wire.codec.payload import Buffer


class Effects(Protocol):
    """What one request has changed. All of it is one record of the log, with the answer of the request."""

    def changes(self, hosted: HostedObject) -> None:
        """An object was made, or its state may change until the request is answered."""

    def stepped(self, optimizer: HostedObject, version: int, gradients: Sequence[tuple[int, torch.Tensor]]) -> None:
        """An optimizer makes a step with gradients of the parameters at these places, which gives it that version. They
        must not change until the request is answered."""

    def again(self, operation: str, request: Message, payload: Buffer | None) -> None:
        """The request changes the same whenever it runs in this order among others."""

    def commit(self, trainer: bytes, number: int, answer: Answer) -> None:
        """Appends the record, if there is something in it. Raises `UnavailableError` if that cannot be done."""


class EffectLog(Protocol):
    """The log of an owner. If `acknowledges`, answers wait until it is on the disk up to their position."""

    acknowledges: bool

    def begin(self) -> Effects:
        """Collects what a request changes. Raises `UnavailableError` if the log cannot be written."""

    def when_synced(self, position: int, callback: Callable[[], Any]) -> None:
        """Calls a function, in any thread, once the log is on the disk up to a position."""


class Durability:
    """The `log` of an owner; None if it has none."""

    log: EffectLog | None = None
