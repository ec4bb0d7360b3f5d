"""How long requests wait for rows and objects that move to another owner."""

from __future__ import annotations

from typing import Final

PAUSE_SECONDS: Final = 0.2
"""For at most so long requests wait while what is left goes over, or else the move goes on for another round."""

PATIENCE_SECONDS: Final = 60.0
"""For so long a move looks for a moment at which no pass is open on what it moves."""
