"""Members of a group that wait for each other, and hand each other values."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ps_wire.codec.payload import PayloadReader, PayloadWriter
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.errors import DeadlineExceededError, InvalidArgumentError
from ps_wire.v1.frames_pb2 import Reply, Request
from ps_wire.v1.operations_pb2 import MembersRequest, RendezvousRequest

if TYPE_CHECKING:
    from trainer_client.rpc.agent import Agent

_DAY = 86_400.0


class Group:
    """Some members, as one of them sees them.

    Args:
        agent: This process.
        names: All of them, this one included.

    Raises:
        InvalidArgumentError: This process is not among them.
    """

    def __init__(self, agent: Agent, names: Iterable[str]) -> None:
        self.names = tuple(sorted(set(names)))
        if agent.name not in self.names:
            raise InvalidArgumentError(f"{agent.name!r} does not belong to the group of {', '.join(self.names)}")
        self._agent = agent

    def rendezvous(self, what: str, seconds: float, value: Any = None) -> dict[str, Any]:
        """Waits until all members have come to the same place, and gives what each of them brought.

        Raises:
            DeadlineExceededError: Somebody did not come in time; it says who.
        """
        key = (what, self.names)
        with _lock:
            self._agent.meetings[key] += 1
            place = f"{what} {self._agent.meetings[key]} of {' '.join(self.names)}"
        payload = PayloadWriter()
        request = RendezvousRequest(key=place, name=self._agent.name, names=self.names, wait_seconds=seconds or _DAY)
        Encoder(payload).encode_into(request.value, value)

        def finish(reply: Reply, answer: PayloadReader) -> dict[str, Any]:
            if reply.rendezvous.missing:
                with _lock:
                    self._agent.meetings[key] -= 1  # next time they meet at the same place
                raise DeadlineExceededError(
                    f"{what}: {', '.join(reply.rendezvous.missing)} did not come within {seconds:.3g} s"
                )
            return dict(zip(reply.rendezvous.names, Decoder(answer).decode(reply.rendezvous.values), strict=True))

        return self._agent.directory.submit(Request(rendezvous=request), payload, finish, None).wait()


_lock = threading.Lock()


def gathered(agent: Agent, size: int, seconds: float) -> Group:
    """The group of all members, once there are as many as there shall be.

    Raises:
        DeadlineExceededError: Some did not come in time; it says who is there.
    """
    request = MembersRequest(at_least=size, wait_seconds=seconds or _DAY)
    pending = agent.directory.submit(Request(members=request), None, lambda reply, _: list(reply.members.members), None)
    members = pending.wait()
    if len(members) < size:
        there = ", ".join(f"{member.name} ({member.id})" for member in members)
        raise DeadlineExceededError(f"{len(members)} of {size} members came within {seconds:g} s: {there}")
    return Group(agent, (member.name for member in members))


class Deadline:
    """A moment in the future.

    Args:
        seconds: How far away it is; 0 for never.
    """

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds if seconds else None

    def left(self) -> float:
        """The seconds until then."""
        return _DAY if self._at is None else max(self._at - time.monotonic(), 0.001)
