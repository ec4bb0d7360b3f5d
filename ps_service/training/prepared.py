"""Gradients of steps over several owners that the log has before one of the owners steps."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from ps_service.group.peers import NOTHING_SAID, Over

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ps_wire.refs import ContextId


LITTLE_BYTES: Final = 64 * 1024
"""More than the log gets of any step, without its gradients."""


class Prepared(NamedTuple):
    """The gradients of a pass for the parameters of an optimizer at these places, and a digest of what the log has of
    them. The step has that place among those of the optimizer in its `run`, if the pass may be run again. The log keeps
    room for so many bytes: once a step is prepared everywhere, no owner may refuse it."""

    places: Sequence[int]
    gradients: Sequence[torch.Tensor]
    digest: int
    run: tuple[bytes, int] | None
    place: int
    log_bytes: int = LITTLE_BYTES


class PreparedSteps:
    """The prepared steps of passes, by the object id of the optimizer. Safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[ContextId, dict[str, Prepared]] = {}

    def __contains__(self, id: ContextId) -> bool:
        return id in self._of

    @property
    def log_bytes(self) -> int:
        """The bytes for which the log keeps room."""
        if not self._of:
            return 0
        with self._lock:
            return sum(each.log_bytes for of in self._of.values() for each in of.values())

    def put(self, id: ContextId, optimizer: str, prepared: Prepared) -> None:
        """Keeps a step until it is made."""
        with self._lock:
            self._of.setdefault(id, {})[optimizer] = prepared

    def of(self, id: ContextId) -> dict[str, Prepared]:
        """The steps of a pass."""
        with self._lock:
            return dict(self._of.get(id, {}))

    def take(self, id: ContextId, optimizer: str) -> Prepared | None:
        """Removes a step, because it is made; None if it is not there."""
        with self._lock:
            of = self._of.get(id)
            if of is None:
                return None
            prepared = of.pop(optimizer, None)
            if not of:
                del self._of[id]
            return prepared

    def end(self, id: ContextId, over: Over = NOTHING_SAID) -> list[ContextId]:
        """Drops the steps of passes that have ended, as `Contexts.end` is told it. Returns those that had some."""
        if not self._of:
            return []
        with self._lock:
            gone = [
                each
                for each in self._of
                if each == id
                or (each.trainer == id.trainer and each.number < over.before and each.number not in over.but)
            ]
            for each in gone:
                del self._of[each]
            return gone

    def forget(self, trainer: bytes) -> None:
        """Drops the steps of a trainer that is gone."""
        with self._lock:
            for id in [id for id in self._of if id.trainer == trainer]:
                del self._of[id]

    def all(self) -> list[tuple[ContextId, str, Prepared]]:
        """All steps."""
        with self._lock:
            return [(id, name, each) for id, of in self._of.items() for name, each in of.items()]
