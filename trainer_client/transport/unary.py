"""Unary requests to owners, on channels that are kept."""

from __future__ import annotations

from typing import Any

import grpc

from ps_wire.errors import UnavailableError
from ps_wire.v1.owner_pb2_grpc import OwnerStub
from trainer_client.transport.channels import open_channel, reason


class UnaryRequests:
    """Asks owners for what needs no session: their status and history. Used on one event loop."""

    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def ask(self, address: str, method: str, request: Any, seconds: float) -> Any:
        """Sends a request (`method` such as `Status`) to the owner at an address.

        Raises `UnavailableError` if no answer came in time, or the owner has answered with an error.
        """
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(address)
        try:
            return await getattr(OwnerStub(channel), method)(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            # gRPC waits ever longer before it tries a broken connection again.
            await self.forget(address)
            late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            why = f"nothing came within {seconds:g} s" if late else reason(error.code(), error.details())
            raise UnavailableError(f"the owner at {address} does not answer: {why}") from None

    async def forget(self, address: str) -> None:
        """Closes the channel to an address, if there is one."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            await channel.close()

    async def close(self) -> None:
        """Closes all channels."""
        for address in list(self._channels):
            await self.forget(address)
