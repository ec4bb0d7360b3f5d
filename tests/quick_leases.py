"""Leases on names that last for half as long as elsewhere: for owners in processes of their own that import this."""

from __future__ import annotations

from ps_service import remote
from tests.lease_seconds import HALVES

for module, name, seconds in HALVES:
    setattr(module, name, seconds)


@remote
def nothing() -> None:
    """An owner imports only modules that it hosts something of."""
