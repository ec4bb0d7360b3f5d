"""Settings of a client."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainer_client.numerics import Seeding


@dataclass(slots=True)
class Settings:
    """The timeouts of a client, in seconds, and what else its sessions share.

    Attributes:
        timeout: Default timeout of a call; None is no limit.
        connect_timeout: Limit of the first connection to an owner.
        reconnect_timeout: Limit of the attempts to open a broken stream again; then the session is given up.
        shared_memory: Whether to use a shared-memory connection if an owner offers one.
        direct: Whether to use a direct connection if an owner offers one, and none over shared memory is open.
        seeding: Makes the seeds of its calls.
    """

    timeout: float | None = 60.0
    connect_timeout: float = 30.0
    reconnect_timeout: float = 60.0
    shared_memory: bool = True
    direct: bool = True
    seeding: Seeding = field(default_factory=Seeding)
