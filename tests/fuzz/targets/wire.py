"""Readers of what travels: frames, records on sockets, values, compressed tensors, policies and options of tables."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, ClassVar, Final

import numpy as np
import torch
from google.protobuf.message import DecodeError, Message

from ps_wire import policies
from ps_wire.codec.payload import PayloadReader, PayloadWriter
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.compression.codec import Encoded
from ps_wire.compression.registry import decode
from ps_wire.connections import frames
from ps_wire.connections.assembler import Assembler
from ps_wire.connections.connection import Traffic
from ps_wire.connections.frames import Packet
from ps_wire.errors import InvalidArgumentError, PsError, TooLargeError
from ps_wire.limits import MIB
from ps_wire.sockets.reader import HEADER, INLINE, RecordReader
from ps_wire.tables import options
from ps_wire.v1.frames_pb2 import Frame
from ps_wire.v1.values_pb2 import Value
from tests.fuzz.cases import Case, Finding
from tests.fuzz.mutations import change, changed_bytes, disordered
from tests.fuzz.recording import Recording, Sent, packed
from tests.fuzz.targets.target import Reader, only
from tests.ps_wire.compression.tensors import ALL, SPARSE
from tests.ps_wire.compression.test_hostile import mutated

_MOST: Final = 1 << 20


def values_in(message: Message) -> Iterator[Value]:
    """The outermost values in a message."""
    for field, content in message.ListFields():
        if field.message_type is None:
            continue
        for each in content if field.is_repeated else [content]:
            if isinstance(each, Value):
                yield each
            elif isinstance(each, Message):
                yield from values_in(each)


def changed_frame(sent: Sent, chance: random.Random) -> tuple[Frame, bytes]:
    """A frame in which some fields were changed, and its payload."""
    frame = Frame()
    frame.CopyFrom(sent.frame)
    payload = sent.payload
    for _ in range(chance.choice([0, 1, 1, 1, 2, 3])):
        change(frame, chance)
    if payload and chance.random() < 0.2:
        payload = changed_bytes(payload, chance)
        if chance.random() < 0.5:
            frame.payload_bytes = len(payload)
    return frame, payload


def split(frame: Frame, payload: bytes, chance: random.Random) -> list[bytes]:
    """A message in several frames."""
    if len(payload) < 2 or chance.random() < 0.7:
        return [frames.serialize(Packet(frame, (memoryview(payload),) if payload else ()))]
    at = chance.randrange(len(payload))
    rest = Frame(number=frame.number, payload=payload[at:])
    rest.part.offset = at
    return [frames.serialize(Packet(frame, (memoryview(payload[:at]),))), rest.SerializeToString()]


class Frames(Reader):
    """Frames of a stream, up to the values in them."""

    name: ClassVar[str] = "frames"

    def __init__(self, recording: Recording) -> None:
        self._sent = recording.sent

    def make(self, chance: random.Random) -> Case:
        parts: list[bytes] = []
        for each in chance.choices(self._sent, k=6):
            parts += split(*changed_frame(each, chance), chance)
        if chance.random() < 0.4:
            parts = disordered(parts, chance)
        if chance.random() < 0.5:
            at = chance.randrange(len(parts)) if parts else 0
            parts[at : at + 1] = [changed_bytes(each, chance) for each in parts[at : at + 1]]
        return Case(self.name, parts)

    def read(self, case: Case) -> None:
        assembler = Assembler(_MOST)
        with only(InvalidArgumentError, TooLargeError):
            for each in case.parts:
                message = assembler.feed(frames.parse(each))
                if message is None or message.error is not None:
                    continue
                for value in values_in(message.frame):
                    with only(InvalidArgumentError, TooLargeError):
                        Decoder(PayloadReader(message.payload)).decode(value)


class Records(Reader):
    """Records on a socket, which arrive in pieces."""

    name: ClassVar[str] = "records"

    def __init__(self, recording: Recording) -> None:
        self._sent = recording.sent

    def make(self, chance: random.Random) -> Case:
        whole = b""
        for each in chance.choices(self._sent, k=5):
            frame, payload = changed_frame(each, chance)
            data = frame.SerializeToString()
            header = [INLINE, len(data), 0, len(payload)]
            if chance.random() < 0.2:
                at = chance.randrange(4)
                header[at] = chance.choice([0, 1, 2, 3, 5, 7, 255, header[at] + 1, 65536, 70000, 2**32 - 1])
                header[0] %= 256
            whole += HEADER.pack(*header) + data + payload
        if chance.random() < 0.3:
            whole = changed_bytes(whole, chance)
        cuts = sorted(chance.randrange(len(whole) + 1) for _ in range(chance.randrange(5)))
        ends = [*cuts, len(whole)]
        return Case(self.name, [whole[a:b] for a, b in zip([0, *cuts], ends, strict=True)])

    def read(self, case: Case) -> None:
        refused: list[str] = []
        reader = RecordReader(2 * MIB, Traffic(), lambda *_: None, refused.append)
        with only():
            for each in case.parts:
                while each and not refused:
                    memory = reader.buffer
                    piece, each = each[: len(memory)], each[len(memory) :]
                    memory[: len(piece)] = piece
                    reader.read(len(piece))


class Values(Reader):
    """Values, with their tensors in a payload. What is accepted can be encoded again."""

    name: ClassVar[str] = "values"

    def __init__(self, recording: Recording) -> None:
        self._seeds = [
            (value, each.payload) for each in recording.sent for value in values_in(each.frame) if value.ByteSize()
        ]

    def make(self, chance: random.Random) -> Case:
        seed, payload = chance.choice(self._seeds)
        value = Value()
        value.CopyFrom(seed)
        for _ in range(chance.randint(1, 3)):
            change(value, chance)
        data = value.SerializeToString()
        if chance.random() < 0.2:
            data = changed_bytes(data, chance)
        return Case(self.name, [data, payload])

    def read(self, case: Case) -> None:
        data, payload = case.parts
        with only(InvalidArgumentError, TooLargeError, DecodeError):
            value = Value.FromString(data)
            found = Decoder(PayloadReader(np.frombuffer(bytearray(payload), np.uint8))).decode(value)
            self.used(found)

    def used(self, found: Any) -> None:
        """Does something with what was read."""
        Encoder(PayloadWriter()).encode(found)


class Options(Values):
    """Policies, and options of tables: values from which objects are made."""

    name: ClassVar[str] = "policies"

    def __init__(self, recording: Recording) -> None:
        policy = policies
        tables = options
        made: list[Any] = [
            *(policy.Async(stale=policy.Scale()), policy.Sync(2), policy.BoundedStaleness(3), policy.Quorum(1, of=2)),
            *(tables.Normal(0.1), tables.Uniform(0.0, 1.0), tables.Zeros(), tables.Constant(1.0), tables.SGD(0.1)),
            *(
                tables.Adagrad(),
                tables.RowWiseAdagrad(),
                tables.LazyAdam(),
                tables.FTRL(),
                tables.RowGroup(0, 9, lr=1.0),
            ),
        ]
        self._seeds = [
            (Encoder(None).encode((policy if isinstance(each, policy.Policy) else tables).to_plain(each)), b"")
            for each in made
        ]

    def used(self, found: Any) -> None:
        for read in (policies.from_plain, options.from_plain):
            with only(PsError):
                read(found)


class Compression(Reader):
    """Compressed tensors: what is decoded has the shape and dtype that the receiver wants."""

    name: ClassVar[str] = "compression"

    def __init__(self, recording: Recording) -> None:
        like = torch.randn(12, 30)
        rows = torch.sparse_coo_tensor([[3, 1, 7]], torch.randn(3, 30), (12, 30), check_invariants=True)
        self._seeds = [*(each.encode(like) for each in ALL), *(each.encode(rows) for each in SPARSE)]

    def make(self, chance: random.Random) -> Case:
        writer = PayloadWriter()
        value = Encoder(writer).encode(mutated(chance.choice(self._seeds), chance).to_value())
        payload = b"".join(writer.chunks)
        if chance.random() < 0.2:
            change(value, chance)
        if chance.random() < 0.2:
            payload = changed_bytes(payload, chance)
        shape = chance.choice([[12, 30], [12, 30], [12, 30], [0], [360], [2, 2], [12, 31]])
        return Case(self.name, [value.SerializeToString(), payload, json.dumps(shape).encode()])

    def read(self, case: Case) -> None:
        data, payload, shape = case.parts
        like = torch.empty(json.loads(shape))
        with only(InvalidArgumentError, TooLargeError):
            reader = PayloadReader(np.frombuffer(bytearray(payload), np.uint8))
            result = decode(Encoded.from_value(Decoder(reader).decode(Value.FromString(data))), like)
            if (result.shape, result.dtype) != (like.shape, like.dtype):
                raise Finding(f"a tensor of shape {tuple(result.shape)} and {result.dtype} for {tuple(like.shape)}")


__all__ = ["Compression", "Frames", "Options", "Records", "Values", "changed_frame", "packed", "split", "values_in"]
