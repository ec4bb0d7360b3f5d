"""The trainer's side: remote modules, distributed autograd and optimizers that run where the parameters live.

import trainer_client as tc

async with tc.connect("127.0.0.1:50051") as ps:
    net = await ps.module("examples.digits.Net", name="net")
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.03)
    for x, y in batches:
        async with ps.context() as ctx:
            loss = F.nll_loss(await net(x), y)
            await ctx.backward(loss)
            await opt.step(ctx)
"""

from ps_wire.codec.records import by_value
from ps_wire.errors import (
    CancelledCallError,
    ClosedError,
    ContextEndedError,
    ContextLostError,
    DeadlineExceededError,
    ForeignHandleError,
    InternalError,
    InvalidArgumentError,
    NameConflictError,
    NonFiniteGradientError,
    NotAllowedError,
    OverloadedError,
    PsError,
    RemoteError,
    SessionLostError,
    StaleHandleError,
    TooLargeError,
    UnavailableError,
    UnknownMethodError,
    UnknownNameError,
)
from trainer_client.client.client import Client
from trainer_client.client.connect import connect
from trainer_client.contexts.context import Context
from trainer_client.graph.current import current_context
from trainer_client.handles.handles import RemoteModule, RemoteObject
from trainer_client.handles.parameters import RemoteParameter
from trainer_client.handles.references import RRef
from trainer_client.optimizers.optimizer import DistributedOptimizer
from trainer_client.optimizers.scheduler import DistributedScheduler
from trainer_client.pending import Pending

__all__ = [
    "CancelledCallError",
    "Client",
    "ClosedError",
    "Context",
    "ContextEndedError",
    "ContextLostError",
    "DeadlineExceededError",
    "DistributedOptimizer",
    "DistributedScheduler",
    "ForeignHandleError",
    "InternalError",
    "InvalidArgumentError",
    "NameConflictError",
    "NonFiniteGradientError",
    "NotAllowedError",
    "OverloadedError",
    "Pending",
    "PsError",
    "RRef",
    "RemoteError",
    "RemoteModule",
    "RemoteObject",
    "RemoteParameter",
    "SessionLostError",
    "StaleHandleError",
    "TooLargeError",
    "UnavailableError",
    "UnknownMethodError",
    "UnknownNameError",
    "by_value",
    "connect",
    "current_context",
]
