"""Lets the code that this process hosts reach other owners, with the part of a pass that it makes there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_service.group.peers import Foreign, Peers
from ps_service.hosting.references import RRef as HostedRRef
from ps_service.parameters.locks import WouldBlock
from ps_wire.v1.operations_pb2 import LookupRequest, Member, MembersReply, MembersRequest
from trainer_client.contexts.context import Context
from trainer_client.endings import first_failure
from trainer_client.graph.current import current_context, inside
from trainer_client.graph.running_backward import RunningBackward
from trainer_client.pending import Pending
from trainer_client.rpc.rref import RRef
from trainer_client.rpc.tables import SharedTable, find

if TYPE_CHECKING:
    from ps_wire.refs import ContextId, Ref
    from trainer_client.contexts.gradients import Reach
    from trainer_client.graph.recorder import Reserved
    from trainer_client.rpc.agent import Agent
    from trainer_client.session.session import Session

_FIRST_CALL: Final = 1 << 32

_outer: ContextVar[_Outer | None] = ContextVar("trainer_client_outer", default=None)


@dataclass(slots=True)
class _Outer:
    """The call that a thread runs for a pass: the numbers of those that it is nested in, and its own, as its place."""

    place: tuple[int, ...]
    calls: int = 0


class NestedContext(Context):
    """The part of another trainer's pass that continues from this process to other owners: a `NestedPass`. What hosted
    code calls for a call of that trainer is recorded under the id that it brought, on sessions of this process."""

    joins_any_client = True

    def __init__(self, id: ContextId, loop: asyncio.AbstractEventLoop, reach: Reach) -> None:
        super().__init__(id, loop, reach)
        self.root = torch.empty(0, device="cpu", requires_grad=True)
        # The trainer may be this process, which counts the calls of its own part from 1.
        self._calls = _FIRST_CALL
        self._running = threading.local()

    @property
    def current_backward(self) -> RunningBackward | None:
        """The backward that runs in this thread. Several may run, one for each call that was recorded here."""
        return getattr(self._running, "current", None)

    def _reserve(self, session: Session) -> Reserved:
        number, place = super()._reserve(session)
        outer = _outer.get()
        if outer is not None:
            outer.calls += 1
            place = (*outer.place, outer.calls)
        return number, place

    @contextmanager
    def calling(self, place: tuple[int, ...]) -> Iterator[None]:
        token = _outer.set(_Outer(place))
        try:
            with inside(self):
                yield
        finally:
            _outer.reset(token)

    @contextmanager
    def propagating(self, retain_graph: bool, backward: int) -> Iterator[None]:
        current = RunningBackward(retain_graph, backward)
        before, self._running.current = self.current_backward, current
        try:
            yield
            current.finish()
        finally:
            failure = first_failure(current.posts)
            self._running.current = before
        if failure is not None:
            failure()  # raises

    def others(self) -> list[str]:
        return [session.owner for session in self.sessions]


class GroupPeers(Peers):
    """The other members of a group, for the code that this process hosts."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def nested_pass(self, context: ContextId) -> NestedContext:
        return NestedContext(context, self._agent.loop, self._agent.client.others.reach)

    def local(self, rref: HostedRRef) -> RRef:
        return RRef.of_hosted(rref)

    def foreign(self, ref: Ref, history: ContextId | None) -> RRef:
        self._check_thread()
        held = Pending.run(self._agent.loop, self._agent.client.others.take_hold([ref])).wait()
        handle = self._agent.client.others.held(ref)
        del held
        if history is not None:
            # The caller continues the backward on the object's owner after the backward of all its uses.
            handle.mark(history, torch.empty(0, device="cpu", requires_grad=True))
        return RRef.of_handle(handle)

    def table(self, name: str, owners: Sequence[str]) -> SharedTable:
        self._check_thread()
        return find(self._agent.loop, self._agent.client.others, name, owners)

    def in_pass(self) -> bool:
        return current_context() is not None

    def departing(self, value: Any, context: ContextId | None) -> HostedRRef | Foreign | None:
        if isinstance(value, HostedRRef):
            return value
        if not isinstance(value, RRef):
            return None
        if value.hosted is not None:
            return value.hosted
        handle = value.handle()
        if handle.owner == self._agent.name:
            return HostedRRef.to(self._agent.engine.registry.look_up(handle.ref), handle.ref.parameter)
        return Foreign(handle.ref, handle, handle.token(context) if context is not None else None)

    def find(self, name: str, id: int | None, seconds: float) -> Member:
        self._check_thread()
        request = LookupRequest(name=name) if id is None else LookupRequest(id=id)
        request.wait_seconds = seconds
        return self._agent.client.others.ask(self._agent.directory, request).wait()

    def gathered(self, request: MembersRequest) -> MembersReply:
        self._check_thread()
        return MembersReply(members=self._agent.client.others.members(self._agent.directory, request).wait())

    async def members(self, seconds: float) -> Sequence[Member]:
        agent = self._agent
        if agent.keeps_directory:
            found = agent.engine.directory.members()
            return [Member(name=each.name, address=each.address, id=each.id) for each in found]
        address = agent.entry.plan.directory if agent.entry is not None else ""
        reply = await agent.unary.ask(address or agent.directory.address, "Members", MembersRequest(), seconds)
        return list(reply.members)

    async def ask(self, address: str, method: str, request: Any, seconds: float) -> Any:
        return await self._agent.unary.ask(address, method, request, seconds)

    @property
    def keeps_directory(self) -> bool:
        return self._agent.keeps_directory

    @property
    def directory(self) -> str:
        session = self._agent.client.others.directory
        return "" if self._agent.keeps_directory or session is None else session.address

    @property
    def borrowed(self) -> int:
        return self._agent.client.others.borrowed

    def _check_thread(self) -> None:
        # Code on the event loop must not wait for another owner; a compute thread runs the request again.
        if asyncio._get_running_loop() is self._agent.loop:
            raise WouldBlock
