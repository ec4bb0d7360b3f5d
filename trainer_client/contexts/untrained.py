"""Tells of tables that a pass has looked up in, and that none of its steps trains."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set

    from trainer_client.contexts.closing import Part
    from trainer_client.session.session import Session

_log: Final = logging.getLogger("trainer_client")
_told: Final[WeakKeyDictionary[Session, set[str]]] = WeakKeyDictionary()
"""The tables of which it was logged."""


def tell(looked_up: Mapping[str, Sequence[Part]], stepped: Set[str]) -> None:
    """Logs, once for each table, that a pass with a step has not stepped its optimizer.

    Args:
        looked_up: The tables by name, whose rows may be trained, with the parts of their optimizers.
        stepped: Object ids of what the pass has stepped.
    """
    for name, parts in looked_up.items():
        if not stepped.isdisjoint(part.name.object_id for part in parts):
            continue
        told = _told.setdefault(parts[0].session, set())
        if name in told:
            continue
        told.add(name)
        _log.warning(
            "a pass looked up in table %r, and none of its steps trains the table. Give it to the optimizer, as in "
            "ps.optimizer(cls, [*net.parameters(), table], …), or step with step=[opt, table.optimizer]; or look up "
            "under torch.no_grad() (logged once)",
            name,
        )
