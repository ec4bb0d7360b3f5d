"""Seconds after which owners that import `impatient` doubt whether another has taken their place."""

from typing import Final

PATIENCE_SECONDS: Final = 1.0
