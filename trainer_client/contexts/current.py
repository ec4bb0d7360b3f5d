"""The current context, as programs get it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from trainer_client.graph import current

if TYPE_CHECKING:
    from trainer_client.contexts.context import Context

# What records calls knows less of it.
current_context = cast("Callable[[], Context | None]", current.current_context)
"""As `trainer_client.graph.current.current_context`: every pass there is a `Context`."""
