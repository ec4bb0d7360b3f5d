"""What owners in tests host, each list made once: to look through all classes takes longer than to start an owner."""

from __future__ import annotations

from functools import cache
from types import ModuleType

from ps_service.hosting.allowlist import AllowList


@cache
def allowed(*modules: ModuleType) -> AllowList:
    """What these modules have, the same list each time. It is for owners that list nothing more later."""
    return AllowList(modules)
