"""Where an attack takes place: an owner with tokens, an innocent trainer, and an attacker with a token of its own."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import torch
from torch import nn

import trainer_client as tc
from ps_service.server import Server
from ps_wire.v1.errors_pb2 import Error, ErrorCode
from ps_wire.v1.frames_pb2 import Frame, Request
from ps_wire.v1.owner_pb2_grpc import OwnerStub
from tests.attack import hosted
from tests.attack.attack import Broken
from tests.integration.access.identities import Identities
from tests.integration.support import HandMade
from tests.integration.tls.authority import Authority
from trainer_client.transport.channels import open_channel
from trainer_client.transport.grpc_stream import GrpcConnector

SLOWEST = 5.0
"""Seconds in which a pass of the innocent trainer has to end, whatever is sent meanwhile. It takes milliseconds."""

CODES = {ErrorCode.ERROR_PERMISSION_DENIED, ErrorCode.ERROR_UNAUTHENTICATED}
"""How access is refused."""

DENIED = (tc.errors.PermissionDeniedError, tc.errors.UnauthenticatedError)
"""The same as errors."""


class Innocent:
    """Trains, and compares each loss with local torch, bit by bit."""

    def __init__(self, ps: tc.Client) -> None:
        self.ps = ps
        torch.manual_seed(1)
        self._local = nn.Linear(4, 2)
        self._local_opt = torch.optim.SGD(self._local.parameters(), lr=0.1)
        self._inputs = torch.Generator().manual_seed(2)
        self.slowest = 0.0

    async def begin(self) -> None:
        """Makes the objects, without names."""
        self.net = await self.ps.module("torch.nn.Linear", 4, 2, seed=1)
        self.opt = await self.ps.optimizer(torch.optim.SGD, self.net.parameters(), lr=0.1)

    async def one_pass(self) -> None:
        """Raises `Broken` if the loss is another one than that of local torch, or if it takes too long."""
        x = torch.randn(3, 4, generator=self._inputs)
        began = time.monotonic()
        try:
            async with self.ps.context() as ctx:
                loss = (await self.net(x)).square().sum()
                await ctx.backward(loss, step=self.opt)
        except tc.PsError as error:
            raise Broken(f"the innocent trainer had {error!r}") from error
        took = time.monotonic() - began
        self.slowest = max(self.slowest, took)
        self._local_opt.zero_grad()
        expected = self._local(x).square().sum()
        expected.backward()
        self._local_opt.step()
        if loss.item() != expected.item():
            raise Broken(f"the innocent trainer had the loss {loss.item()!r} instead of {expected.item()!r}")
        if took > SLOWEST:
            raise Broken(f"the innocent trainer waited {took:.1f} s for a pass")


class Scene:
    """An owner that serves everything, and what an attack needs to reach it. `mallory` is the attacker, a trainer."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.stack = stack
        self.identities = Identities(folder)
        self.identities.add("mallory", "trainer")
        self.authority: Authority | None = None
        self.tried = 0

    async def begin(self, tls: bool) -> None:
        """Starts the owner and the innocent trainer."""
        options: dict[str, Any] = {"http": "127.0.0.1:0", "modules": (hosted,)}
        if tls:
            self.authority = Authority(self.folder)
            options["tls"] = self.authority.server(asks=True)
        self.server: Server = await self.stack.enter_async_context(self.identities.serving(**options))
        self.innocent = Innocent(await self.connect("trainer"))
        await self.innocent.begin()
        await self.innocent.one_pass()

    @property
    def address(self) -> str:
        """Where the owner is, for gRPC."""
        return self.server.address

    @property
    def direct_port(self) -> int:
        """Its port of direct connections."""
        return int(self.server.servicer.direct.port)

    async def connect(self, name: str, **more: Any) -> tc.Client:
        """A trainer with the token of an identity, until the attack is over."""
        if self.authority is not None:
            more = {"tls": self.authority.trainer()} | more
        return await self.stack.enter_async_context(self.identities.connect(self.server, name, **more))

    async def stream(self, name: str = "mallory", namespace: str = "") -> HandMade:
        """A stream that has been welcomed, on which any frame can be sent."""
        stream = HandMade(await GrpcConnector(self.address, token=self.identities.tokens[name]).connect())
        self.stack.push_async_callback(stream.connection.close)
        await stream.send(Frame(hello=stream.hello(namespace=namespace)))
        answer = await stream.receive()
        self.hold(answer.HasField("welcome"), f"{name} is not let in: {answer}")
        return stream

    async def hello(self, name: str = "mallory", **changes: Any) -> Frame:
        """The answer to a first frame."""
        stream = HandMade(await GrpcConnector(self.address, token=self.identities.tokens[name]).connect())
        await stream.send(Frame(hello=stream.hello(**changes)))
        answer = await stream.receive()
        await stream.connection.close()
        return answer

    async def ask(self, stream: HandMade, request: Request) -> Error:
        """The error with which a request on a stream is answered; one without a code if it is not refused."""
        self.tried += 1
        await stream.send(Frame(number=self.tried, request=request))
        return (await stream.receive()).reply.error

    async def unary(self, method: str, request: Any, *metadata: tuple[str, str], name: str = "mallory") -> Any:
        """The status with which a unary method is answered, and its reply."""
        self.tried += 1
        sent = [("authorization", f"Bearer {self.identities.tokens[name]}"), *metadata]
        async with open_channel(self.address) as channel:
            try:
                reply = await getattr(OwnerStub(channel), method)(request, metadata=sent, timeout=10.0)
            except grpc.aio.AioRpcError as error:
                return error.code(), None
        return grpc.StatusCode.OK, reply

    def hold(self, holds: object, what: str) -> None:
        """Raises `Broken` unless something holds."""
        if not holds:
            raise Broken(what)

    def denied(self, error: Error, what: object) -> None:
        """Raises `Broken` unless a request was refused by the check of access."""
        name = ErrorCode.Name(error.code)
        self.hold(error.code in CODES, f"{what}: {name} {error.message[:200]}")

    async def refused(self, asked: Awaitable[Any], what: object, *errors: type[Exception]) -> None:
        """Raises `Broken` unless something is refused with one of these errors, or by the check of access."""
        self.tried += 1
        try:
            found = await asked
        except (*errors, *DENIED):
            return
        except Exception as error:
            raise Broken(f"{what}: {error!r}") from error
        raise Broken(f"{what}: it was answered with {found!r:.200}")


@asynccontextmanager
async def scene(folder: Path, tls: bool = False) -> AsyncIterator[Scene]:
    """A scene, whose innocent trainer trains before and after."""
    async with AsyncExitStack() as stack:
        found = Scene(folder, stack)
        await found.begin(tls)
        yield found
        await found.innocent.one_pass()
