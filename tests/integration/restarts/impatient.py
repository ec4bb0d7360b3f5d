"""For owners in processes of their own that import this: they look sooner, and before each record, whether another has
taken their place."""

from __future__ import annotations

from ps_service import remote
from ps_service.durability.log import log
from ps_service.sessions import fence
from tests.integration.restarts.patience import PATIENCE_SECONDS

for module, name, seconds in ((log, "_EPOCH_SECONDS", -1.0), (fence, "PATIENCE_SECONDS", PATIENCE_SECONDS)):
    assert hasattr(module, name)
    setattr(module, name, seconds)


@remote
def nothing() -> None:
    """An owner imports only modules that it hosts something of."""
