"""Rendezvous of members of a group."""

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
    """A set of members that wait for each other.

    Args:
        agent: The agent of this process.
        names: Names of the members, this one included.

    Raises:
        InvalidArgumentError: This process is not among them.
    """

    def __init__(self, agent: Agent, names: Iterable[str]) -> None:
        self.names = tuple(sorted(set(names)))
        if agent.name not in self.names:
            raise InvalidArgumentError(
                f"this member, {agent.name!r}, is not among the given names: {', '.join(self.names)}"
            )
        self._agent = agent

    def rendezvous(self, what: str, seconds: float, value: Any = None) -> dict[str, Any]:
        """Waits until all members have called it with the same name, and returns their values.

        Args:
            what: Name of the rendezvous, for its key and for error messages.
            seconds: Seconds to wait.
            value: The value of this process.

        Raises:
            DeadlineExceededError: A member did not arrive in time; the message names the missing ones.
        """
        counted = (what, self.names)
        with _lock:
            self._agent.rendezvous_counts[counted] += 1
            key = f"{what} {self._agent.rendezvous_counts[counted]} of {' '.join(self.names)}"
        payload = PayloadWriter()
        request = RendezvousRequest(key=key, name=self._agent.name, names=self.names, wait_seconds=seconds or _DAY)
        Encoder(payload).encode_into(request.value, value)

        def finish(reply: Reply, answer: PayloadReader) -> dict[str, Any]:
            if reply.rendezvous.missing:
                with _lock:
                    self._agent.rendezvous_counts[counted] -= 1  # the next attempt uses the same key
                raise DeadlineExceededError(
                    f"{what}: {', '.join(reply.rendezvous.missing)} did not come within {seconds:.3g} s"
                )
            return dict(zip(reply.rendezvous.names, Decoder(answer).decode(reply.rendezvous.values), strict=True))

        return self._agent.directory.submit(Request(rendezvous=request), payload, finish, None).wait()


_lock = threading.Lock()


def gathered(agent: Agent, size: int, seconds: float) -> Group:
    """Waits until there are `size` members, and returns the group of all of them.

    Raises:
        DeadlineExceededError: Some members did not arrive in time; the message names those that did.
    """
    request = MembersRequest(at_least=size, wait_seconds=seconds or _DAY)
    pending = agent.directory.submit(Request(members=request), None, lambda reply, _: list(reply.members.members), None)
    members = pending.wait()
    if len(members) < size:
        there = ", ".join(f"{member.name} ({member.id})" for member in members)
        raise DeadlineExceededError(f"{len(members)} of {size} members came within {seconds:g} s: {there}")
    return Group(agent, (member.name for member in members))


class Deadline:
    """A deadline.

    Args:
        seconds: Seconds from now; 0 for no deadline.
    """

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds if seconds else None

    def left(self) -> float:
        """The seconds that are left."""
        return _DAY if self._at is None else max(self._at - time.monotonic(), 0.001)
