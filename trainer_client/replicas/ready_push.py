"""A push that is ready to be sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from trainer_client.pending import Pending


class Push(NamedTuple):
    """A push that is ready to be sent.

    Attributes:
        send: Sends it.
        withdraw: Called if it will not be sent.
    """

    send: Callable[[], Pending[Any]]
    withdraw: Callable[[], None]
