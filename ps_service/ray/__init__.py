"""Owners that Ray places, watches and restarts: `start` begins a cluster of them, and `Cluster` is one that runs.

The extra `ray` installs what this needs, and nothing of it is imported before it is used.
"""

from __future__ import annotations

import importlib
import typing

if typing.TYPE_CHECKING:
    from ps_service.ray.cluster import Cluster, start
    from ps_service.ray.owner_state import OwnerState

__all__ = ["Cluster", "OwnerState", "start"]

_HOMES: typing.Final = {
    "Cluster": "ps_service.ray.cluster",
    "OwnerState": "ps_service.ray.owner_state",
    "start": "ps_service.ray.cluster",
}


def __getattr__(name: str) -> typing.Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value
