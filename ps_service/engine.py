"""Creates the parts of an owner and holds them in one object."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

import torch

from ps_service.access.access import Access
from ps_service.collectives.communicators import Communicators
from ps_service.execution.inline_limit import InlineLimit
from ps_service.execution.thread_pool import ThreadPool
from ps_service.group.directory import Directory
from ps_service.group.peers import Membership
from ps_service.hosting.allowlist import AllowList
from ps_service.hosting.moved_objects import Moves
from ps_service.hosting.registry import Registry
from ps_service.measures.curves import Curves
from ps_service.measures.events import Events
from ps_service.memory.available import memory
from ps_service.memory.held import HeldByAll
from ps_service.memory.message_budget import Budget
from ps_service.metrics.counters import Counters
from ps_service.metrics.history import History
from ps_service.metrics.object_counts import ObjectCounts
from ps_service.parameters.locks import ParameterLocks
from ps_service.passes.contexts import Contexts
from ps_service.quotas.quotas import Quotas
from ps_service.sessions import arrivals
from ps_service.sessions.belongings import Belongings
from ps_service.sessions.effects import Durability
from ps_service.sessions.fence import Fence
from ps_service.sessions.gate import Gate
from ps_service.sessions.reply_cache import ReplyCache
from ps_service.sessions.request_sources import RequestSources
from ps_service.sessions.sessions import Incarnations, Sessions, SessionState
from ps_service.tables.applied_steps import AppliedStep, digest_of
from ps_service.tables.budget import TableBudget
from ps_service.tables.hosted_table import HostedTable
from ps_service.tables.optimizer import RowOptimizer
from ps_service.training.memberships import Memberships
from ps_service.training.optimizers import HostedOptimizer
from ps_service.training.prepared import PreparedSteps
from ps_service.training.schedulers import HostedScheduler
from ps_wire import tracing
from ps_wire.errors import InvalidArgumentError
from ps_wire.limits import Limits
from ps_wire.numerics import operators, vector_functions
from ps_wire.tables.names import OPTIMIZER, SHARD

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ps_service.access.token_file import TokenFile
    from ps_service.hosting.objects import HostedObject
    from ps_service.memory.held import Held
    from ps_service.quotas.quota import QuotaFile
    from ps_wire.sockets.connection import RecordConnection
    from ps_wire.v1.operations_pb2 import CheckpointReply


class Checkpoints:
    """Writes checkpoints of an owner that goes on, by a function that a server sets once it has the data directory.

    That is called in any thread, blocks until the checkpoint is written, and raises a `PsError` if it cannot be.
    Its argument is who has asked for it, for the audit log.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self.write: Callable[..., CheckpointReply] = self._refuse

    def _refuse(self, by: object = None) -> CheckpointReply:
        raise InvalidArgumentError(
            f"owner {self._owner!r} has no directory for checkpoints: start it with ps-service serve --data-dir"
        )


class Engine:
    """Everything an owner holds. Functions that work on an owner take it as their first argument.

    It is complete when it is constructed, and its parts are never exchanged. What is made later, such as the peers of a
    group, is registered with its part. Without an `allowlist`, trainers may name what is torch's own; without
    `tokens`, everybody may do everything, and without `quotas`, use everything. A file of one of these that cannot be
    read is an `InvalidArgumentError`.
    """

    def __init__(
        self,
        name: str,
        allowlist: AllowList | None = None,
        device: torch.device | None = None,
        limits: Limits | None = None,
        threads: int = 0,
        spare_threads: int = 0,
        data_dir: Path | None = None,
        tokens: TokenFile | None = None,
        quotas: QuotaFile | None = None,
    ) -> None:
        self.name: Final = name
        self.access: Final = Access(name, tokens)
        self.allowlist: Final = allowlist or AllowList()
        self.device: Final = device or torch.device("cpu")
        self.limits: Final = limits or Limits()
        self.data_dir: Final = data_dir
        self.table_budget: Final = TableBudget(
            name, self.limits.max_table_bytes or memory() * 3 // 4, self.limits.max_message_bytes
        )
        self.quotas: Final = Quotas(name, quotas)
        self.object_counts: Final = ObjectCounts(self.table_budget, self.quotas)
        self.registry: Final = Registry(name, self.object_counts)
        self.moves: Final = Moves(name)
        self.parameter_locks: Final = ParameterLocks()
        self.held: Final = HeldByAll(self.limits)
        self.sessions: Final = Sessions(self.limits, quotas=self.quotas)
        self.quotas.account_of = self.sessions.account_of
        if self.quotas.is_on:
            self.held.others_of, self.held.check_others = self._held_of, self._check_held
        self.belongings: Final = Belongings(self.access, self.sessions, self.registry)
        self.contexts: Final = Contexts(self.held, has_session=self.sessions.has, quotas=self.quotas)
        self.gate: Final = Gate(self.contexts)
        self.fence: Final = Fence()
        self.incarnations: Final = Incarnations()
        self.reply_cache: Final = ReplyCache()
        self.requests: Final = RequestSources()
        self.budget: Final = Budget(self.limits)
        self.compute: Final = ThreadPool(threads, spare_threads)
        if self.quotas.is_on:
            self.compute.when_ran = self.quotas.charge
            self.budget.groups_of = lambda trainer: self.quotas.tallies(self.sessions.account_of(trainer))
        self.directory: Final = Directory(self.sessions.is_away, self.sessions.has)
        self.memberships: Final = Memberships(self.compute.submit, self.sessions.describe, lambda: self.draining)
        self.communicators: Final = Communicators(self.sessions, self.limits, self.compute.later)
        self.membership: Final = Membership()
        self.counters: Final = Counters()
        self.history: Final = History()
        self.curves: Final = Curves()
        self._began = time.monotonic()
        operators.resolve()
        vector_functions.settle()
        self.events: Final = Events()
        self.slow_seconds: Final = self.limits.slow_call_seconds or math.inf
        self.inline_limit: Final = InlineLimit(lambda: self.compute.hand_over_seconds, lambda: self.counters.is_busy)
        # The connections that are open.
        self.shared_memory: Final[set[RecordConnection]] = set()
        self.direct: Final[set[RecordConnection]] = set()
        self.tracing: Final = tracing.of_program(name)
        self.checkpoints: Final = Checkpoints(name)
        self.durability: Final = Durability()
        self.prepared: Final = PreparedSteps()
        self.allowlist.functions.serve(self.limits, self.device)
        self.allowlist.allow(HostedTable, SHARD)
        self.allowlist.allow(RowOptimizer, OPTIMIZER)

    def _held_of(self, trainer: bytes) -> tuple[Held, ...]:
        return tuple(each.held for each in self.quotas.tallies(self.sessions.account_of(trainer)))

    def _check_held(self, trainer: bytes) -> None:
        self.quotas.check_held(self.sessions.account_of(trainer))

    def uptime_seconds(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._began

    @property
    def draining(self) -> bool:
        """Whether the owner takes no new work."""
        return self.gate.state is not Gate.State.OPEN

    @property
    def state(self) -> str:
        """The state of an owner that has started: `serving`, `stalled` (no compute thread is free) or `draining`."""
        return "draining" if self.draining else "stalled" if self.compute.stalled else "serving"

    @property
    def durable(self) -> bool:
        """Whether the owner writes a checkpoint when it stops, and resumes from it when it starts."""
        return self.data_dir is not None

    def keeps_gradients(self, parameter: torch.Tensor) -> bool:
        """Whether gradients of a parameter are kept outside of passes: those of steps that were prepared, and of open
        rounds whose trainers have gone on."""
        prepared = {object_id for _, object_id, step in self.prepared.all() if step.places}
        for each in self.optimizers_of(parameter):
            rounds = each.value.rounds
            if each.ref.object_id in prepared or (rounds is not None and rounds.keeps_gradients):
                return True
        return False

    def used_with(self, parameter: torch.Tensor) -> list[str]:
        """The policies and schedulers of the optimizers of a parameter, for messages."""
        found = []
        for each in self.optimizers_of(parameter):
            if each.value.rounds is not None:
                found.append(f"the policy {each.value.rounds.policy}")
            found += [f"the scheduler {of.name!r}" for of in each.dependents if isinstance(of.value, HostedScheduler)]
        return found

    def applied_to(self, parameter: torch.Tensor, forget: bool = False) -> list[AppliedStep]:
        """As `PassHost.applied_to`."""
        numbers = {each.value.number for each in self.optimizers_of(parameter)}
        runs = [each for each in self.contexts.runs.all() if each.optimizer in numbers]
        if forget:
            self.contexts.runs.forget(runs)
        return [AppliedStep(digest_of(each.trainer), each.run, place) for each in runs for place in each.versions]

    def optimizers_of(self, parameter: torch.Tensor) -> list[HostedObject]:
        """The optimizers of a parameter."""
        optimizers = [each for each in self.registry.objects() if isinstance(each.value, HostedOptimizer)]
        return [each for each in optimizers if any(own is parameter for own in each.value.parameters)]

    def end_session(self, session: SessionState) -> None:
        """Frees everything a trainer held; what fails is raised when everything else was freed."""
        frees = (
            self.contexts.forget,
            self.registry.forget,
            self.reply_cache.drop,
            self.budget.forget,
            partial(self.directory.leave, lost=not session.said_goodbye),
            self.memberships.forget,
            self.prepared.forget,
            partial(self.communicators.forget, lost=not session.said_goodbye),
        )
        if self.durability.log is not None:
            self.durability.log.ended(session.trainer)
        with ExitStack() as stack:
            for free in reversed(frees):
                stack.callback(free, session.trainer)
            stack.callback(self.sessions.end, session)
            stack.callback(arrivals.gone, self.events, session)

    def close(self, seconds: float | None = None) -> None:
        """Ends the compute threads. Waits at most so many seconds for running functions; None is no limit."""
        self.compute.close(seconds)
