"""Release: which release of the package this is."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

RELEASE: Final = version("torch-parameter-server")
