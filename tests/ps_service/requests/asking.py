"""Asking an owner without a server: one operation at a time, with tensors inside the messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ps_service.engine import Engine
from ps_service.requests.execution import answer
from ps_service.requests.operations import OPERATIONS
from ps_wire import errors
from ps_wire.codec.payload import PayloadReader
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.values_pb2 import Handle, Value

ANNA, BERT = b"a" * 16, b"b" * 16
ONE = pb.ContextId(trainer=ANNA, number=1)


def value(python: Any) -> Value:
    """A value with its tensors inside the message."""
    return Encoder(None).encode(python)


def python(message: Value) -> Any:
    return Decoder(PayloadReader()).decode(message)


class Asker:
    """Asks an owner, one operation at a time, as the unary methods do."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def __call__(self, operation: str, request: Any, trainer: bytes = ANNA) -> Any:
        if self.engine.sessions.get(trainer) is None:
            self.engine.sessions.open(trainer)
        result = await answer(self.engine, trainer, OPERATIONS[operation], request, embed=True)
        if result.reply.HasField("error"):
            raise errors.from_message(result.reply.error)
        return getattr(result.reply, operation)

    async def linear(self, name: str = "net", trainer: bytes = ANNA) -> pb.ObjectInfo:
        """A module with the weight [[1, 2]] and no bias."""
        request = pb.CreateRequest(
            class_name="torch.nn.Linear", args=value((2, 1)), kwargs=value({"bias": False}), name=name
        )
        made = (await self("create", request, trainer)).object
        await self(
            "load_state",
            pb.LoadStateRequest(target=made.handle, state=value({"weight": torch.tensor([[1.0, 2.0]])}), strict=True),
        )
        return made

    async def forward(self, target: Handle, x: torch.Tensor, context: pb.ContextId = ONE, call: int = 1) -> Any:
        request = pb.CallRequest(target=target, args=value((x,)), context=context, call=call, training=True)
        return python((await self("call", request)).result)

    async def backward(self, gradients: Sequence[Any], call: int = 1, retain: bool = False) -> list[Any]:
        request = pb.BackwardRequest(
            context=ONE, call=call, outputs=[0], gradients=value(gradients), retain_graph=retain
        )
        return python((await self("backward", request)).gradients)

    async def weight(self, made: pb.ObjectInfo) -> list[Any]:
        return python((await self("fetch", pb.FetchRequest(target=parameter(made)))).value).tolist()

    async def optimizer(self, made: pb.ObjectInfo, cls: str = "torch.optim.SGD", **fields: Any) -> pb.ObjectInfo:
        request = pb.OptimizerRequest(
            class_name=cls,
            groups=[pb.ParameterGroup(parameters=[parameter(made)])],
            options=value({"lr": 0.5}),
            **fields,
        )
        return (await self("optimizer", request)).object


def parameter(made: pb.ObjectInfo, name: str = "weight") -> Handle:
    handle = Handle()
    handle.CopyFrom(made.handle)
    handle.parameter = name
    return handle
