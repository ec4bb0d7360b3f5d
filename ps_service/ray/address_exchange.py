"""How the supervisors of a cluster tell each other where their owners serve."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

import ray

from ps_wire.supervisors import NAMESPACE, supervisor_name

if TYPE_CHECKING:
    from ps_service.ray.supervision import Supervision

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.5
"""Seconds between looks at the address of the owner here."""

_EXCHANGE_SECONDS: Final = 15.0
"""Seconds after which all are asked although nothing has changed here: an answer may have been lost."""

_ANSWER_SECONDS: Final = 5.0


class AddressExchange:
    """Exchanges addresses with the other supervisors whenever the owner here serves at a new address. That one then
    hears of all that serve, and they of it; so two that start at the same time hear of each other from the later one.

    `run` is for a thread of its own.
    """

    def __init__(self, supervision: Supervision) -> None:
        spec = supervision.spec
        self._supervision = supervision
        self._actors: dict[str, Any] = dict.fromkeys(each for each in spec.names if each != spec.name)

    def run(self) -> None:
        """Exchanges addresses as long as this process runs."""
        told, due = "", 0.0
        while self._actors:
            address = self._supervision.address
            if (address and address != told) or time.monotonic() >= due:
                try:
                    self._exchange(address)
                except Exception as error:  # whatever another package raises
                    _log.info("the other supervisors cannot be asked for addresses: %s", error)
                told, due = address, time.monotonic() + _EXCHANGE_SECONDS
            time.sleep(_LOOK_SECONDS)

    def _exchange(self, address: str) -> None:
        asked = {}
        for name, actor in self._actors.items():
            try:
                if actor is None:
                    full = supervisor_name(self._supervision.spec.cluster, name)
                    actor = self._actors[name] = ray.get_actor(full, namespace=NAMESPACE)
            except ValueError:  # it is being made
                continue
            asked[actor.exchange.remote(self._supervision.spec.name, address)] = name
        answered = ray.wait(list(asked), num_returns=len(asked), timeout=_ANSWER_SECONDS)[0] if asked else []
        for each in answered:
            try:
                self._supervision.hear(asked[each], ray.get(each))
            except ray.exceptions.RayError as error:
                _log.info("the supervisor of %s cannot be asked for its address: %s", asked[each], error)
