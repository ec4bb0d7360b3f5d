"""Settings of a client."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainer_client.numerics import Seeding


@dataclass(slots=True)
class Settings:
    """How patient a client is, and what else its sessions share; all times in seconds.

    Attributes:
        timeout: How long a call may take when it says nothing else; None waits for ever.
        connect_timeout: How long the first connection to an owner may take.
        reconnect_timeout: How long a broken stream is tried to be opened again before the session is given up.
        shared_memory: Whether to use a shared-memory connection where an owner offers one.
        seeding: The seeds of its calls.
    """

    timeout: float | None = 60.0
    connect_timeout: float = 30.0
    reconnect_timeout: float = 60.0
    shared_memory: bool = True
    seeding: Seeding = field(default_factory=Seeding)
