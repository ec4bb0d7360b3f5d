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

The floors, from the bottom (an import may only point down):

    transport, settings, pending     ways to an owner; results on their way
    exchange, link, session, requests   numbered requests over a stream that may break
    recorder, graph, context         remote calls in torch's autograd graph
    references, calls, others        handles, and what is called through them
    handles, layout                  what a trainer holds of an owner's objects
    optimizer, scheduler, client     the operations
    portal, blocking, connect        the front door, with and without await
"""

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
    UnknownNameError,
)
from ps_wire.records import by_value
from trainer_client.client import Client
from trainer_client.connect import connect
from trainer_client.context import Context, current_context
from trainer_client.handles import RemoteModule, RemoteObject, RemoteParameter
from trainer_client.optimizer import DistributedOptimizer
from trainer_client.pending import Pending
from trainer_client.references import RRef
from trainer_client.scheduler import DistributedScheduler

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
    "UnknownNameError",
    "by_value",
    "connect",
    "current_context",
]
