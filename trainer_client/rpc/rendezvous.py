"""Rendezvous of members of a group: they wait for each other, and exchange values."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ps_wire.codec.payload import PayloadReader, PayloadWriter
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    NameConflictError,
    SessionLostError,
    UnavailableError,
    caused,
)
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import RendezvousReply, RendezvousRequest
from ps_wire.v1.values_pb2 import Value
from trainer_client.pending import Pending
from trainer_client.rpc.current import agent
from trainer_client.rpc.options import UNSET
from trainer_client.rpc.waiting import LOOK_SECONDS, Deadline, in_time, told

if TYPE_CHECKING:
    from trainer_client.rpc.agent import Agent

Answer = tuple[RendezvousReply, PayloadReader]


def chosen(agent: Agent, names: Iterable[str] | None) -> tuple[str, ...] | None:
    """The named members, or those that began together; None in an open group. Refuses names without this member's."""
    names = agent.together if names is None else names
    if names is None:
        return None
    found = tuple(sorted(set(names)))
    if agent.name not in found:
        raise InvalidArgumentError(f"this member, {agent.name!r}, is not among the given names: {', '.join(found)}")
    return found


def meet(
    agent: Agent, names: tuple[str, ...], what: str, deadline: Deadline, value: Any = None, *, leaving: bool = False
) -> dict[str, Any]:
    """Waits until all members with these names have called it for the same purpose, and returns their values. A
    deadline without a limit is one only for members that are there. If the members leave, those that have left are not
    waited for. Raises `DeadlineExceededError` with the names of the missing ones, `UnavailableError` if a member is
    lost or has left, or the directory is, and as `barrier` if this one was lost."""
    request = RendezvousRequest(
        # The directory counts how often they have met: a member that has joined again does not know.
        key=f"{what} of {' '.join(names)}",
        name=agent.name,
        names=names,
        leaving=leaving,
        arrival=next(agent.arrivals),
    )
    arrival = Arrival(agent, what, request, value, deadline)
    reply, answer = Pending.run(agent.loop, arrival.complete()).wait()
    return dict(zip(reply.names, Decoder(answer).decode(reply.values), strict=True))


class Arrival:
    """The arrival of this process at a rendezvous, by a request to which the value and the time are added."""

    def __init__(self, agent: Agent, what: str, request: RendezvousRequest, value: Any, deadline: Deadline) -> None:
        self._agent = agent
        self._what = what
        self._request = request
        self._payload = PayloadWriter()
        self._value = Value()
        Encoder(self._payload).encode_into(self._value, value)
        self._deadline = deadline
        # A limit where there is none, for members that have not joined.
        self._absent_until = Deadline(0.0 if deadline.seconds else agent.patience)
        self._waits_for = self._directory

    def __str__(self) -> str:
        """How long it will wait."""
        if self._deadline.seconds or not self._absent_until.seconds or self._absent_until.over:
            return str(self._deadline)
        return f"{self._absent_until} for members that have not joined, and {self._deadline} for others"

    async def complete(self) -> Answer:
        """Waits until all have arrived."""
        try:
            async with in_time(self._deadline.left() + LOOK_SECONDS, self._no_answer), told(self._says, self):
                return await self._asked()
        except (NameConflictError, UnavailableError) as error:
            raise caused(error, self._what) from error
        except SessionLostError as error:
            raise SessionLostError(
                f"{self._what}: {self._directory} had given up this member, {self._agent.name!r}, because its "
                "connection was broken for too long. Whether the others have met without waiting is not known. It "
                "joins again by itself; agree with the others where to go on"
            ) from error

    async def _asked(self) -> Answer:
        with_value = True
        while True:
            left = self._deadline.left()
            stays = left > LOOK_SECONDS
            try:
                reply, answer = await self._ask(min(left, LOOK_SECONDS), stays, with_value)
            except asyncio.CancelledError:
                self._ask()  # it does not wait any longer
                raise
            if not reply.missing:
                return reply, answer
            with_value = self._agent.name in reply.missing
            missing = self._waits_for = ", ".join(reply.missing)
            if reply.absent and self._absent_until.over:
                self._ask()
                missing, stays = ", ".join(reply.absent), False
            if not stays:
                seconds = self._deadline.seconds or self._absent_until.seconds
                raise DeadlineExceededError(f"{self._what}: {missing} did not come within {seconds:.3g} s")

    def _ask(self, seconds: float = 0.0, stays: bool = False, with_value: bool = False) -> Pending[Answer]:
        request = Request(rendezvous=self._request)
        request.rendezvous.wait_seconds = seconds
        request.rendezvous.stays = stays
        request.rendezvous.again = not with_value
        if with_value:
            request.rendezvous.value.CopyFrom(self._value)
        payload = self._payload if with_value else None
        return self._agent.directory.submit(request, payload, lambda reply, answer: (reply.rendezvous, answer), None)

    def _no_answer(self) -> str:
        return f"{self._what}: {self._directory} did not answer within {self._deadline.seconds:.3g} s"

    def _says(self) -> str:
        waits_for = self._waits_for if self._agent.directory.state == "connected" else self._directory
        return f"{self._agent.name!r} has called {self._what}, and waits for {waits_for}"

    @property
    def _directory(self) -> str:
        return f"the directory at {self._agent.directory.address}"


def barrier(names: Iterable[str] | None = None, timeout: float = UNSET) -> None:
    """Waits until all members have called it.

    Args:
        names: Names of the members to wait for, this one included; None for all members that began together.
        timeout: Seconds to wait; 0 for no limit, -1 for the default timeout of calls.

    Raises:
        DeadlineExceededError: A member did not arrive in time; the message names the missing ones.
        UnavailableError: A member was lost or has left since this one joined.
        SessionLostError: This member was lost: its connection with the directory was broken for longer than a lease.
        NameConflictError: This member was lost, and another process has joined under its name since.
        InvalidArgumentError: This process is not among `names`, or the group is open and no names were given.
    """
    _meet("barrier", names, timeout)


def all_gather(value: Any, names: Iterable[str] | None = None, timeout: float = UNSET) -> dict[str, Any]:
    """Waits until all members have called it, and returns the values of all of them, by name.

    Args:
        value: The value of this process: any value that can be sent.
        names: Names of the members to wait for, as in `barrier`.
        timeout: Seconds to wait, as in `barrier`.

    Raises:
        DeadlineExceededError, UnavailableError, SessionLostError, NameConflictError, InvalidArgumentError: As in
            `barrier`.
    """
    return _meet("all_gather", names, timeout, value)


def _meet(what: str, names: Iterable[str] | None, timeout: float, value: Any = None) -> dict[str, Any]:
    members = chosen(agent(), names)
    if members is None:
        raise InvalidArgumentError("the group is open: give the names of the members to wait for")
    return meet(agent(), members, what, Deadline(agent().seconds(timeout) or 0.0), value)
