"""The name of this program, as owners show it."""

from __future__ import annotations

import sys
from pathlib import PurePath
from typing import Final

LONGEST_NAME: Final = 128
"""Most characters of the names of a host and a program, which people read in the logs and the status of owners."""


def program_name() -> str:
    """The name of this program: that of its file, or of the module that `python -m` runs."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = spec.name.removesuffix(".__main__") if spec is not None else PurePath(sys.argv[0] if sys.argv else "").name
    return (name if name and name != "-c" else "python")[:LONGEST_NAME]
