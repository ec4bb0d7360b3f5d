"""Attacks with tokens: old ones, others', and odd headers."""

from __future__ import annotations

import base64
import time

import grpc

import trainer_client as tc
from ps_service.access.token_file import TokenFile
from ps_wire.connections.connection import ConnectionBroken
from ps_wire.connections.frames import Packet
from ps_wire.limits import PROTOCOL
from ps_wire.v1.frames_pb2 import DirectOffer, Frame, Hello
from tests.attack.attack import attack
from tests.attack.scene import Scene
from tests.waiting import until
from trainer_client.transport.channels import open_channel
from trainer_client.transport.offers import open_direct

STATUS = "/ps_wire.v1.Owner/Status"


@attack(
    "uses a token again after it was revoked, and after it has expired",
    "open sessions end, and new ones are refused",
    quick=True,
)
async def replay_an_old_token(at: Scene) -> None:
    at.identities.add("late", "trainer", expires=time.time() + 3600)
    at.server.engine.access.look()
    late, mallory = await at.connect("late"), await at.connect("mallory")
    at.identities.file.revoke("mallory")
    at.server.engine.access.clock = lambda: time.time() + 3601
    await until(lambda: len(at.server.engine.sessions.all()) == 1)
    for name, ps in (("late", late), ("mallory", mallory)):
        await at.refused(ps.status(), f"the open session of {name}", tc.errors.SessionLostError)
        await at.refused(at.identities.connect(at.server, name), f"a new session of {name}")


@attack(
    "shows tokens of other owners, hashes from the token file, beginnings of tokens, and two tokens in all odd forms",
    "none lets in",
    quick=True,
)
async def forge_a_token(at: Scene) -> None:
    other = TokenFile(at.folder / "others").add("admin", ("admin",))
    own, reader = at.identities.tokens["admin"], at.identities.tokens["reader"]
    lines = at.identities.file.path.read_text("utf-8").split('"')
    hashes = [each for each in lines if len(each) > 40]
    at.hold(hashes, "the file has no hashes")
    forms = [
        *(f"Bearer {each}" for each in (other, *hashes, own[:-1], own + "x", own.swapcase(), "", "x" * 8000)),
        *(own, f"Token {own}", f"Bearer:{own}", f"Bearer,{own}", f"Bearer {own},{reader}", f'Bearer "{own}"'),
        *(f"Basic {own}", "Basic " + base64.b64encode(f"{own}:".encode()).decode(), f"Bearer Bearer {own}"),
        f"Bearer {own} {reader}",
    ]
    async with open_channel(at.address) as channel:
        for sent in (
            *([("authorization", each)] for each in forms),
            [("authorization", f"Bearer {own}"), ("authorization", f"Bearer {reader}")],
            [("x-authorization", f"Bearer {own}")],
            [("authorization-bin", f"Bearer {own}".encode())],
            [("cookie", f"authorization=Bearer {own}")],
            [("proxy-authorization", f"Bearer {own}")],
        ):
            at.tried += 1
            try:
                await channel.unary_unary(STATUS)(b"", metadata=sent, timeout=10.0)
                code = grpc.StatusCode.OK
            except grpc.aio.AioRpcError as error:
                code = error.code()
            at.hold(code is not grpc.StatusCode.OK, f"{sent!r:.60} lets in")


@attack(
    "opens direct connections with a token twice, with one of another trainer, and with what is no token of that port",
    "a token of it is good once, and for its trainer",
    quick=True,
)
async def replay_the_token_of_a_direct_connection(at: Scene) -> None:
    async def opened(token: bytes, trainer: bytes) -> str:
        at.tried += 1
        connection = await open_direct(DirectOffer(port=at.direct_port, token=token), at.address)
        try:
            await connection.send(Packet(Frame(hello=Hello(protocol=PROTOCOL, trainer=trainer))))
            packet = await connection.receive()
        except ConnectionBroken:
            return ""
        finally:
            await connection.close()
        return "" if packet is None else packet.frame.WhichOneof("body") or ""

    trainer = b"m" * 16
    first, second = [(await at.hello(trainer=trainer)).welcome.direct.token for _ in range(2)]
    at.hold(first and second and first != second, "there are no offers")
    at.hold(await opened(first, trainer) == "welcome", "the right token is refused")
    at.hold(await opened(first, trainer) == "", "a token is good twice")
    at.hold(await opened(second, at.innocent.ps.trainer) == "refusal", "a token opens the session of another")
    for token in (second, bytes(32), at.identities.tokens["admin"].encode()[:32], first[:-1] + b"x"):
        at.hold(await opened(token, trainer) == "", f"{token!r} opens a connection")
