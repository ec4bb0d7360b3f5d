"""Messages of the bare program on a blocking socket: a header, and the bytes of tensors."""

from __future__ import annotations

import enum
import socket
import struct
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

_HEADER: Final = struct.Struct("<BI")


class Operation(enum.IntEnum):
    """What an owner is asked for."""

    FORWARD = 1
    BACKWARD = 2
    BACKWARD_AND_STEP = 3
    STEP = 4
    STATE = 5


def send(connection: socket.socket, operation: Operation, tensors: Sequence[Tensor] = ()) -> None:
    """Sends an operation with tensors, or its answer.

    Raises:
        OSError: The connection is broken.
    """
    parts = [tensor.detach().numpy().tobytes() for tensor in tensors]
    connection.sendall(b"".join([_HEADER.pack(operation, sum(map(len, parts))), *parts]))


def receive(connection: socket.socket) -> tuple[Operation, Tensor]:
    """The next operation, and the bytes with it as float32; a batch of integers has to be viewed as what it is.

    Raises:
        EOFError: The other end closed the connection.
        OSError: The connection is broken.
    """
    operation, size = _HEADER.unpack(_exactly(connection, _HEADER.size))
    operation = Operation(operation)
    if not size:
        return operation, torch.empty(0)
    return operation, torch.frombuffer(_exactly(connection, size), dtype=torch.float32)


def no_delay(connection: socket.socket) -> socket.socket:
    """Lets a connection send small messages at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _exactly(connection: socket.socket, size: int) -> bytearray:
    held = bytearray(size)
    view, done = memoryview(held), 0
    while done < size:
        got = connection.recv_into(view[done:])
        if not got:
            raise EOFError("the other end closed the connection")
        done += got
    return held
