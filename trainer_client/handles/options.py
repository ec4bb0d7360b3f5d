"""How calls are made."""

from __future__ import annotations

from typing import Final, NamedTuple

from trainer_client.pending import DEFAULT


class CallOptions(NamedTuple):
    """How a call is made.

    Attributes:
        training: Whether modules run in training mode; None for the mode that each has on its owner.
        timeout: Seconds this may take; None is no limit.
        seed: Seed of its random numbers, instead of the client's next.
        kind: How it is called, for profiles and traces.
        what: Name of what is called, for profiles and traces; empty for the name of the method or function.
    """

    training: bool | None = True
    timeout: float | None = DEFAULT
    seed: int | None = None
    kind: str = "call"
    what: str = ""


USUAL: Final = CallOptions()
