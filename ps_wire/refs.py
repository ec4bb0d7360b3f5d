"""The names of objects, parameters, contexts and calls in the protocol."""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import NamedTuple

from ps_wire.errors import InvalidArgumentError
from ps_wire.v1 import operations_pb2, values_pb2

_OBJECT_ID = re.compile(r"[0-9a-f]{32}")
_TOLD = re.compile(r".* \((?P<ref>ps://.+)\)", re.DOTALL)
_TEXT = re.compile(r"ps://(?P<owner>[^/#\s]+)/(?P<object_id>[0-9a-f]{32})(?:#(?P<parameter>.+))?", re.DOTALL)


class Ref(NamedTuple):
    """Names an object on an owner, or one of its parameters, by its dotted name inside the object.

    The id of an object is 128 random bits in hexadecimal, so that a handle cannot be guessed.
    """

    owner: str
    object_id: str
    parameter: str = ""

    def __str__(self) -> str:
        return f"ps://{self.owner}/{self.object_id}" + (f"#{self.parameter}" if self.parameter else "")

    @classmethod
    def parse(cls, text: str) -> Ref:
        """The inverse of `str(ref)`, also if that stands in brackets behind a description, as in `str(handle)`."""
        told = _TOLD.fullmatch(text)
        match = _TEXT.fullmatch(told["ref"] if told is not None else text)
        if match is None:
            raise InvalidArgumentError(f"{text!r} is not a handle; one looks like ps://ps0/0123…cdef")
        return cls(match["owner"], match["object_id"], match["parameter"] or "")

    @staticmethod
    def is_in(text: str) -> bool:
        """Whether a text is meant for `parse`, and is no name."""
        return text.startswith("ps://") or _TOLD.fullmatch(text) is not None

    def digest(self) -> int:
        """64 bits that identify it, on any owner, and do not give its id away."""
        text = f"{self.object_id}#{self.parameter}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")

    @classmethod
    def from_message(cls, message: values_pb2.Handle) -> Ref:
        return cls(message.owner, message.object_id, message.parameter)

    def to_message(self) -> values_pb2.Handle:
        return values_pb2.Handle(owner=self.owner, object_id=self.object_id, parameter=self.parameter)


class ContextId(NamedTuple):
    """Names one forward/backward/step pass of one trainer, which counts its passes from 1."""

    trainer: bytes
    number: int

    def __str__(self) -> str:
        return f"{self.trainer.hex()[:8]}/{self.number}"

    @classmethod
    def from_message(cls, message: operations_pb2.ContextId) -> ContextId:
        return cls(message.trainer, message.number)

    def to_message(self) -> operations_pb2.ContextId:
        return operations_pb2.ContextId(trainer=self.trainer, number=self.number)


class CallKey(NamedTuple):
    """Names one recorded call of a pass on the owner that ran it. The caller is a trainer, or another owner."""

    caller: bytes
    number: int


def new_object_id() -> str:
    """128 unguessable bits, in hexadecimal."""
    return secrets.token_hex(16)


def is_object_id(text: str) -> bool:
    """Whether a text has the form of an object id."""
    return _OBJECT_ID.fullmatch(text) is not None


def new_trainer_id() -> bytes:
    """The id of a new trainer: 16 unguessable bytes."""
    return secrets.token_bytes(16)
