"""Plain grpc.aio with pickle: what a user writes who needs a parameter server today."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import uvloop

from benchmarks.peers.caller import Caller
from benchmarks.peers.hosted import Owner
from benchmarks.peers.serving import run
from benchmarks.trainer import Config

METHOD = "/owner/Call"
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


async def _serve(opened: Any, ended: threading.Event) -> None:
    owner = Owner()

    async def call(request: bytes, _: object) -> bytes:
        method, *arguments = pickle.loads(request)
        return pickle.dumps(getattr(owner, method)(*arguments), 5)

    server = grpc.aio.server(options=OPTIONS)
    handlers = {"Call": grpc.unary_unary_rpc_method_handler(call)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("owner", handlers),))
    opened(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    await asyncio.to_thread(ended.wait)
    await server.stop(0)


@contextmanager
def owner(_: list[str]) -> Iterator[str]:
    """Serves an owner in a thread."""
    ports: list[int] = []
    opened, ended = threading.Event(), threading.Event()

    def tell(port: int) -> None:
        ports.append(port)
        opened.set()

    thread = threading.Thread(target=lambda: uvloop.run(_serve(tell, ended)))
    thread.start()
    opened.wait()
    yield f"127.0.0.1:{ports[0]}"
    ended.set()
    thread.join()


def trainer(config: Config) -> Caller:
    """Calls with a blocking stub."""
    stub = grpc.insecure_channel(config.owners[0], OPTIONS).unary_unary(METHOD)
    return Caller(config, lambda *call: pickle.loads(stub(pickle.dumps(call, 5))))


if __name__ == "__main__":
    run(owner, trainer)
