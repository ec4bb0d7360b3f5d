"""Lets the code that this process hosts reach other owners."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ps_service.group.peers import Foreign
from ps_service.hosting.references import RRef as HostedRRef
from ps_service.parameters.alone import WouldBlock
from ps_wire.v1.operations_pb2 import LookupRequest, Member, MembersReply, MembersRequest
from trainer_client.pending import Pending
from trainer_client.rpc.nested_pass import NestedContext, NestedPass
from trainer_client.rpc.rref import RRef

if TYPE_CHECKING:
    from ps_wire.refs import ContextId, Ref
    from trainer_client.rpc.agent import Agent


class GroupPeers:
    """The other members of a group, as `ps_service.group.peers.Peers`.

    Args:
        agent: The agent of this process.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def nested_pass(self, context: ContextId) -> NestedPass:
        return NestedPass(NestedContext(context, self._agent.loop, self._agent.client.others.reach))

    def local(self, rref: HostedRRef) -> RRef:
        return RRef.of_hosted(rref)

    def foreign(self, ref: Ref, history: ContextId | None) -> RRef:
        self._check_thread()
        held = Pending.run(self._agent.loop, self._agent.client.others.take_hold([ref])).wait()
        handle = self._agent.client.others.held(ref)
        del held
        if history is not None:
            # The caller continues the backward on the object's owner after the backward of all its uses.
            handle.mark(history, torch.empty(0, requires_grad=True))
        return RRef.of_handle(handle)

    def departing(self, value: Any, context: ContextId | None) -> HostedRRef | Foreign | None:
        if isinstance(value, HostedRRef):
            return value
        if not isinstance(value, RRef):
            return None
        if value.hosted is not None:
            return value.hosted
        handle = value.handle()
        if handle.owner == self._agent.name:
            return HostedRRef.to(self._agent.engine.registry.find(handle.ref), handle.ref.parameter)
        return Foreign(handle.ref, handle, handle.token(context) if context is not None else None)

    def find(self, name: str, id: int | None, seconds: float) -> Member:
        self._check_thread()
        directory = self._agent.client.others.directory
        assert directory is not None
        request = (
            LookupRequest(name=name, wait_seconds=seconds) if id is None else LookupRequest(id=id, wait_seconds=seconds)
        )
        return self._agent.client.others.ask(directory, request).wait()

    def gathered(self, request: MembersRequest) -> MembersReply:
        self._check_thread()
        others = self._agent.client.others
        assert others.directory is not None
        return MembersReply(members=others.members(others.directory, request).wait())

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
        try:
            if asyncio.get_running_loop() is self._agent.loop:
                raise WouldBlock
        except RuntimeError:
            pass
