"""Every operation, method and path, asked for with every role: over gRPC, on streams and as unary methods, and HTTP."""

from __future__ import annotations

import base64

import aiohttp
import grpc
import pytest

from ps_service.access import roles
from ps_service.access.access import Point
from ps_service.monitoring.paths import PATHS
from ps_service.requests.operations import OPERATIONS, Operation
from ps_service.rpc.guard import METHODS
from ps_service.server import Server
from ps_wire.v1.errors_pb2 import ErrorCode
from ps_wire.v1.frames_pb2 import Frame, Request
from ps_wire.v1.operations_pb2 import MOVE_ACCEPT
from tests.integration.access.identities import ROLES, Identities
from tests.integration.support import HandMade
from trainer_client.transport.channels import open_channel
from trainer_client.transport.grpc_stream import GrpcConnector

REFUSALS = {ErrorCode.ERROR_PERMISSION_DENIED, ErrorCode.ERROR_UNAUTHENTICATED}


def may(role: str, asked: Operation | Point) -> bool:
    """Whether an empty request of a role passes. It is a plain one, where there are plain ones."""
    bits = roles.ROLES[role]
    plain = asked.plain is not None and bits & asked.plain.needs
    return bool(bits & asked.needs or plain)


async def test_on_streams(guarded: Server, identities: Identities) -> None:
    for role in ROLES:
        stream = await HandMade.greeted(GrpcConnector(guarded.address, token=identities.tokens[role]))
        number = 0
        for name, operation in OPERATIONS.items():
            if operation.waits:
                continue  # for members that do not come
            number += 1
            request = Request()
            getattr(request, name).SetInParent()
            if name == "call":
                request.call.function = "no.such.function"
            if name == "move":
                request.move.action = MOVE_ACCEPT
            await stream.send(Frame(number=number, request=request))
            reply = (await stream.receive()).reply
            refused = reply.error.code in REFUSALS
            assert refused is not may(role, operation), (role, name, reply.error)
        await stream.connection.close()


async def test_as_unary_methods(guarded: Server, identities: Identities) -> None:
    async with open_channel(guarded.address) as channel:
        for role in (*ROLES, ""):
            metadata = [("authorization", f"Bearer {identities.tokens[role]}")] if role else []
            for method, asked in METHODS.items():
                if method.endswith(("/Session", "/Watch", "ServerReflectionInfo")) or getattr(asked, "waits", False):
                    continue
                passes = asked.needs == roles.NOBODY
                if role and not passes:
                    plain = 0 if asked.plain is None else asked.plain.needs
                    passes = bool(roles.ROLES[role] & (asked.needs | plain))
                try:
                    # What is no message shows that nothing was read of it before.
                    await channel.unary_unary(method)(b"\xff" if not passes else b"", metadata=metadata, timeout=10.0)
                    code = grpc.StatusCode.OK
                except grpc.aio.AioRpcError as error:
                    code = error.code()
                refused = code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
                # An empty call names no function, which is not allowed either.
                assert refused is not passes or method.endswith("/Call"), (role, method, code)
            for method in (
                "/ps_wire.v1.Owner/Session",
                "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            ):
                call = channel.stream_stream(method)(metadata=metadata)
                if not role:
                    assert await call.code() is grpc.StatusCode.UNAUTHENTICATED, method
                call.cancel()


async def test_over_http(identities: Identities) -> None:
    async with identities.serving(http="127.0.0.1:0") as server, aiohttp.ClientSession() as http:
        for role in (*ROLES, ""):
            token = identities.tokens.get(role, "")
            for method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS", "TRACE", "ODD"):
                for path in (*PATHS, "/none", "//", "/./metrics", "/metrics/", "/%6detrics", "/static/../metrics"):
                    if path == "/messages" and method == "GET" and role:
                        continue  # a stream without end
                    headers = {"authorization": f"Bearer {token}"} if token else {}
                    url = f"{server.http_url}{path.replace('{name}', 'page.css')}"
                    async with http.request(method, url, headers=headers) as answer:
                        point = PATHS.get(path)
                        if point is not None and point.needs == roles.NOBODY and method in ("GET", "HEAD"):
                            assert answer.status not in (401, 403), (role, method, path)
                        elif not role:
                            assert answer.status == (400 if method == "ODD" else 401), (method, path, answer.status)
                        elif point is not None and method in ("GET", "HEAD"):
                            assert answer.status == 200 or path == "/messages", (role, method, path)
                        elif answer.status == 200:
                            assert path in ("/./metrics", "/%6detrics", "/static/../metrics"), (role, method, path)


async def test_no_other_form_of_the_header_lets_in(identities: Identities) -> None:
    admin, reader = (f"Bearer {identities.tokens[name]}" for name in ("admin", "reader"))
    basic = base64.b64encode(f"me:{identities.tokens['reader']}".encode()).decode()
    statuses = [
        *((401, [("authorization", each)]) for each in ("", "Bearer", "Bearer x", "Token x", "Basic x", "Basic Og==")),
        (401, [("authorization", admin), ("authorization", admin)]),
        (401, [("cookie", f"token={identities.tokens['admin']}")]),
        (200, [("authorization", f"Basic {basic}")]),
        (200, [("authorization", reader)]),
        (200, [("authorization", reader), ("origin", "http://{host}")]),
        (403, [("authorization", reader), ("host", "evil.example")]),
        (403, [("authorization", reader), ("origin", "http://evil.example")]),
        (403, [("authorization", reader), ("origin", "null")]),
    ]
    async with identities.serving(http="127.0.0.1:0") as server, aiohttp.ClientSession() as http:
        for status, headers in statuses:
            sent = [(name, value.replace("{host}", server.http_address)) for name, value in headers]
            async with http.get(f"{server.http_url}/status.json", headers=sent) as answer:
                assert answer.status == status, headers
                assert status != 401 or "Basic" in answer.headers["www-authenticate"]
        async with http.get(f"{server.http_url}/metrics?token={identities.tokens['admin']}") as answer:
            assert answer.status == 401


def test_an_operation_without_a_role_does_not_start() -> None:
    given = {"name": "new", "handle": lambda *_: None}
    with pytest.raises(TypeError, match="needs"):
        Operation(**given)
    with pytest.raises(ValueError, match="needs no role that there is"):
        Operation(**given, needs=roles.NOBODY)
