"""Opens the gRPC channels to owners, for trainers and for the command line."""

from __future__ import annotations

from typing import Final

import grpc

from ps_wire.limits import MAX_FRAME_BYTES, MIB
from ps_wire.runtime import forks

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES + MIB),
    ("grpc.max_send_message_length", MAX_FRAME_BYTES + MIB),
    # An owner whose host vanished is noticed within fifteen seconds.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # The default is a minute: gRPC keeps a connection for that long if the other side only acknowledges bytes.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # The session decides when to connect again.
    ("grpc.enable_retries", 0),
    # A broken connection must not make the next one wait: nothing is shared between channels.
    ("grpc.use_local_subchannel_pool", 1),
)


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel to the owner at an address (host:port), for code on an event loop.

    Raises:
        UnavailableError: This process is a fork of one that had used gRPC.
    """
    forks.use_grpc()
    return grpc.aio.insecure_channel(address, options=_OPTIONS)


def open_blocking_channel(address: str) -> grpc.Channel:
    """A channel to the owner at an address (host:port), for code that waits for each answer.

    Raises:
        UnavailableError: This process is a fork of one that had used gRPC.
    """
    forks.use_grpc()
    return grpc.insecure_channel(address, options=_OPTIONS)
