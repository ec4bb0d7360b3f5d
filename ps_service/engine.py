"""The engine: holds all parts of an owner."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch

from ps_service.execution.thread_pool import ThreadPool
from ps_service.group.directory import Directory
from ps_service.group.peers import Alone, Peers
from ps_service.hosting.allowlist import AllowList
from ps_service.hosting.registry import Registry
from ps_service.memory.held import HeldByAll
from ps_service.memory.message_budget import Budget
from ps_service.metrics.census import Census
from ps_service.metrics.counters import Counters
from ps_service.parameters.locks import ParameterLocks
from ps_service.passes.contexts import Contexts
from ps_service.sessions.administration import Control, Nothing
from ps_service.sessions.gate import Gate
from ps_service.sessions.reply_cache import MemoryReplyCache, ReplyCache
from ps_service.sessions.sessions import Sessions, SessionState
from ps_wire.limits import Limits


@dataclass
class Engine:
    """Everything an owner holds. Functions that work on an owner take it as their first argument.

    Attributes:
        name: The owner's name.
        allowlist: Classes and functions that trainers may name.
        device: Where hosted modules live.
        limits: Limits on messages, memory and sizes.
        threads: Size of the compute pool; 0 chooses by the number of cores.
        spare_threads: Threads that may replace compute threads held by abandoned work; 0 chooses as many as there are
            compute threads, and at least sixteen.
        incarnation: A random id, new with every start of the owner.
        continues: Earlier incarnations whose state this one restored; their trainers' sessions stay valid.
        durable: Whether it writes a checkpoint when it stops, and resumes from it when it starts.
        peers: How hosted code reaches other owners.
        shared_memory_connections: Number of open shared-memory connections, and their bytes.
        control: Access to the sessions' streams, for administration.
    """

    name: str
    allowlist: AllowList = field(default_factory=AllowList)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    limits: Limits = field(default_factory=Limits)
    threads: int = 0
    spare_threads: int = 0
    reply_cache: ReplyCache = field(default_factory=MemoryReplyCache)
    incarnation: str = field(default_factory=lambda: os.urandom(8).hex())
    durable: bool = False
    continues: tuple[str, ...] = ()
    peers: Peers = field(default_factory=Alone)
    shared_memory_connections: Callable[[], tuple[int, int]] = lambda: (0, 0)
    control: Control = field(default_factory=Nothing)

    def __post_init__(self) -> None:
        self.registry = Registry(self.name, Census())
        self.parameter_locks = ParameterLocks()
        self.held = HeldByAll(self.limits)
        self.contexts = Contexts(self.held)
        self.gate = Gate(self.contexts)
        self.sessions = Sessions(self.limits)
        self.counters = Counters()
        self.directory = Directory()
        self.allowlist.functions.serve(self.limits, self.device)
        self.budget = Budget(self.limits)
        self.compute = ThreadPool(self.threads, self.spare_threads)

    @property
    def draining(self) -> bool:
        """Whether the owner takes no new work."""
        return self.gate.state is not Gate.State.OPEN

    def knows(self, incarnation: str) -> bool:
        """Whether the state that a trainer built in an incarnation of this owner still exists."""
        return incarnation == self.incarnation or incarnation in self.continues

    def end_session(self, session: SessionState) -> None:
        """Frees everything a trainer held: its contexts, handles and cached answers.

        Raises:
            Exception: Freeing one item failed; everything else was freed.
        """
        frees = (
            self.contexts.forget,
            self.registry.forget,
            self.reply_cache.drop,
            self.budget.forget,
            self.directory.leave,
        )
        with ExitStack() as stack:
            for free in reversed(frees):
                stack.callback(free, session.trainer)
            stack.callback(self.sessions.end, session)

    def close(self, seconds: float | None = None) -> None:
        """Ends the compute threads.

        Args:
            seconds: How long what they run is waited for; None for as long as it takes.
        """
        self.compute.close(seconds)
