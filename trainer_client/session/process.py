"""What a trainer says of its process to owners: people read it in logs and in the status."""

from __future__ import annotations

import socket
import sys
from functools import cache
from pathlib import PurePath
from typing import Final

_LONGEST: Final = 128
"""Most characters of a name that are sent."""


@cache
def program() -> str:
    """The name of this program: that of its file, or of the module that `python -m` runs."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = spec.name.removesuffix(".__main__") if spec is not None else PurePath(sys.argv[0] if sys.argv else "").name
    return (name if name and name != "-c" else "python")[:_LONGEST]


@cache
def host_name() -> str:
    """The name of this host."""
    return socket.gethostname()[:_LONGEST]
