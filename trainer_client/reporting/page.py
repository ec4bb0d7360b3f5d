"""Tells an optimizer the values that a bar is given, for the curves of the page."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ps_wire.errors import InvalidArgumentError, PsError

if TYPE_CHECKING:
    from trainer_client.pending import Pending
    from trainer_client.session.stepped import Stepped

_log = logging.getLogger(__name__)

_SECONDS: Final = 1.0
"""Seconds between two messages."""

_MOST_STEPS: Final = 4096
"""Most steps of one message."""


class PageValues:
    """Values of steps for the page, in a message a second, and one at the end. What an owner refuses is logged once.

    Args:
        optimizer: Whose curves get them, of either client.

    Raises:
        InvalidArgumentError: The optimizer has tables only, or all parameters are in this process.
    """

    def __init__(self, optimizer: Any, clock: Callable[[], float]) -> None:
        own = getattr(optimizer, "unwrapped", optimizer)
        self._waits = own is not optimizer
        self._optimizer = own.of_parameters
        if self._optimizer is None:
            raise InvalidArgumentError("this optimizer has tables only: give that of one of them, as in `tables[name]`")
        self._optimizer.first_part()
        self._clock = clock
        self._next = clock() + _SECONDS
        self._steps: list[tuple[Stepped, Mapping[str, Any]]] = []
        self._is_told = False

    def add(self, stepped: Stepped | None, values: Mapping[str, Any]) -> None:
        """Takes the values of a step. Without one, or if its gradients do not count, they are left out."""
        if stepped is None or stepped.dropped or not values:
            return
        self._steps.append((stepped, values))
        if self._clock() >= self._next or len(self._steps) == _MOST_STEPS:
            self._next = self._clock() + _SECONDS
            self._send()

    def close(self) -> None:
        """Sends what is left. With the blocking client, it is there afterwards."""
        if self._steps and (sent := self._send()) is not None and self._waits:
            try:
                sent.wait()
            except PsError as error:
                self._failed(error)

    def _send(self) -> Pending[None] | None:
        steps, self._steps = self._steps, []
        numbers = [(stepped, {name: float(value) for name, value in of.items()}) for stepped, of in steps]
        try:
            sent: Pending[None] = self._optimizer.add_to_curves(numbers)
        except PsError as error:
            self._failed(error)
            return None
        sent.on_done(partial(self._look, sent))
        return sent

    def _look(self, sent: Pending[None]) -> None:
        try:
            sent.result()
        except PsError as error:
            self._failed(error)

    def _failed(self, error: PsError) -> None:
        if not self._is_told:
            self._is_told = True
            _log.warning("the page does not get the values of this loop: %s", error)
