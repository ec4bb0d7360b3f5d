"""The seconds of leases on names, halved on all sides: for tests that wait until a lease is over."""

from __future__ import annotations

from ps_service.group import lease, registers
from trainer_client.rpc import leased_entry

_SECONDS = (
    (registers, ("LEASE_SECONDS", "HOLD_SECONDS", "CHECK_SECONDS", "WAIT_SECONDS")),
    (lease, ("LEASE_SECONDS",)),
    (leased_entry, ("BEAT_SECONDS", "_ASK_SECONDS", "_LOOK_SECONDS")),
)

HALVES = [(module, name, getattr(module, name) / 2) for module, names in _SECONDS for name in names]
"""What to set where."""
