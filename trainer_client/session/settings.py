"""Settings of a client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ps_wire import tracing
from ps_wire.arguments import check_text
from ps_wire.errors import InvalidArgumentError
from ps_wire.numbers import check_seconds, check_timeout
from ps_wire.shown import shown
from ps_wire.tls import TLS
from trainer_client.numerics import Seeding
from trainer_client.pending import DEFAULT
from trainer_client.profiling.members import Members, Numbered
from trainer_client.session.held_up import HeldUpPasses
from trainer_client.session.runs import Runs

if TYPE_CHECKING:
    from collections.abc import Callable

    from ps_wire.tokens import Token
    from ps_wire.tracing import Tracing
    from trainer_client.session.presence import OnState


@dataclass(slots=True)
class Settings:
    """The timeouts of a client, in seconds, and what else its sessions share.

    None is no limit of a call. With `marks`, tensors that are received outside of contexts are leaves that require
    grad if they do on their owner. `member` is the name of this process in its group; empty if it is in none.
    `last_pass` gives the number of the last pass that the client has begun.
    """

    timeout: float | None = 60.0
    connect_timeout: float = 30.0
    reconnect_timeout: float = 60.0
    shared_memory: bool = True
    direct: bool = True
    marks: bool = False
    seeding: Seeding = field(default_factory=Seeding)
    runs: Runs = field(default_factory=Runs)
    held_up: HeldUpPasses = field(default_factory=HeldUpPasses)
    members: Members = field(default_factory=Numbered)
    on_state: OnState | None = None
    member: str = ""
    tls: TLS | None = None
    token: Token = field(default=None, repr=False)
    namespace: str = ""
    tracing: Tracing | None = field(default_factory=lambda: tracing.of_program())
    last_pass: Callable[[], int] = int

    def __post_init__(self) -> None:
        check_timeout(self.timeout)
        check_seconds("connect_timeout", self.connect_timeout)
        check_seconds("reconnect_timeout", self.reconnect_timeout)
        check_text("namespace", self.namespace)
        if self.tls is not None and not isinstance(self.tls, TLS):
            raise InvalidArgumentError(f"tls is tc.TLS(ca=…, cert=…, key=…), not {shown(self.tls)}")
        if self.on_state is not None and not callable(self.on_state):
            raise InvalidArgumentError(f"on_state is a function that takes a state, not {shown(self.on_state)}")

    def seconds(self, timeout: float | None) -> float | None:
        """The timeout of a call: the default in the place of `DEFAULT`. `InvalidArgumentError` if it is no time."""
        if timeout == DEFAULT:
            return self.timeout
        check_timeout(timeout)
        return timeout
