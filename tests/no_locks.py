"""A file system without locks, as some of a network are: for owners in processes of their own that import this."""

from __future__ import annotations

import fcntl

from ps_service import remote

fcntl.flock = lambda *_: None  # type: ignore[assignment, misc]


@remote
def nothing() -> None:
    """An owner imports only modules that it hosts something of."""
