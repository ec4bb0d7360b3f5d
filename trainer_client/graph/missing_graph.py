"""What to say about a backward without a graph: its root was computed from nothing that requires grad."""

from __future__ import annotations

from typing import Final

_OF_TORCH: Final = "does not require grad and does not have a grad_fn"
"""Stands in torch's error for such a root."""

ADVICE: Final = (
    "Remote calls are recorded inside the block of a context only, and not under torch.no_grad(): make those of the "
    "forward there, with parameters or inputs that require grad"
)


def is_of_a_missing_graph(error: BaseException | None) -> bool:
    """Whether it is torch's error for a root without a graph, without this advice."""
    return type(error) is RuntimeError and _OF_TORCH in str(error) and ADVICE not in str(error)


def advise(error: BaseException | None) -> None:
    """Adds the advice to an error that `loss.backward()` has raised. Does nothing to others, and to None."""
    if error is not None and is_of_a_missing_graph(error):
        error.add_note(
            f"{ADVICE} (`with ps.context() as ctx:`), and call ctx.backward(loss) instead of loss.backward()"
        )
