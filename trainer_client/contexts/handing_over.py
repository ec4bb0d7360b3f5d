"""Passes that outlive their block, because something that was begun in it still needs their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer_client.contexts.context import Context


def hand_over(context: Context, other: Context) -> Context:
    """Makes a new object stand for an open pass. `close` of that ends the pass on the owners.

    For the program the pass is over: calls in the rest of its block are like calls outside of it, and the end of the
    block tells owners nothing. If the other object is freed before it is closed, the pass ends, too.

    Args:
        context: What stands for the pass so far.
        other: A context of the same id, with the same gradients of this process.

    Returns:
        The other one.
    """
    other.message, other.attempt = context.message, context.attempt
    # Only the push knows which tables are stepped: the block tells nothing of them.
    other.looked_up, other.stepped, context.looked_up = context.looked_up, context.stepped, {}
    other.joins_any_client = context.joins_any_client
    with context._lock:
        other._calls, other._sessions, other._losses = context._calls, context._sessions, context._losses
        context.ended = True
    if context._openings is not None:
        # In place of the first one, so that its end does not end the pass.
        context._openings.opened(other, other.ending())
    context.finished = context._token is not None
    return other
