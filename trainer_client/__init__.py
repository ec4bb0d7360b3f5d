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

from typing import Any as _Any

from ps_wire import release as _release
from ps_wire.codec.records import by_value
from ps_wire.compression.choice import Choice
from ps_wire.compression.floats import BF16, FP16
from ps_wire.compression.int8 import Int8
from ps_wire.compression.powersgd import PowerSGD
from ps_wire.compression.randomk import RandomK
from ps_wire.compression.registry import register_codec
from ps_wire.compression.sign import Sign
from ps_wire.compression.topk import TopK
from ps_wire.compression.zstd import Zstd
from ps_wire.errors import (
    CancelledCallError,
    ClosedError,
    ContextEndedError,
    ContextLostError,
    DeadlineExceededError,
    DrainingError,
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
from ps_wire.policies import Apply, Async, BoundedStaleness, Compensate, Policy, Quorum, Reject, Scale, Sync
from ps_wire.tables.life import AfterSightings, Eviction, WithProbability
from ps_wire.tables.options import (
    FTRL,
    SGD,
    Adagrad,
    Constant,
    LazyAdam,
    Normal,
    PartialRowWiseAdam,
    RowGroup,
    RowWiseAdagrad,
    Uniform,
    Zeros,
)
from trainer_client.client.client import Client
from trainer_client.client.connect import connect
from trainer_client.collectives.communicator import Communicator
from trainer_client.contexts.context import Context
from trainer_client.contexts.current import current_context
from trainer_client.contexts.prefetching import LookedUp
from trainer_client.handles.handles import RemoteModule, RemoteObject
from trainer_client.handles.parameters import RemoteParameter
from trainer_client.handles.references import RRef
from trainer_client.optimizers.optimizer import DistributedOptimizer
from trainer_client.optimizers.scheduler import DistributedScheduler
from trainer_client.pending import Pending
from trainer_client.replicas.local_steps import DiLoCo, LocalSGD, LocalSteps
from trainer_client.replicas.replica import Replica
from trainer_client.replicas.several import Replicas
from trainer_client.reporting.meter import StepNumbers
from trainer_client.reporting.progress import Progress, progress
from trainer_client.reporting.tensorboard import TensorBoard
from trainer_client.session.presence import ConnectionState
from trainer_client.session.stepped import Stepped
from trainer_client.tables.schedules import SchedulerWithTables
from trainer_client.tables.table import Table
from trainer_client.tables.together import OptimizerWithTables

__all__ = [
    "BF16",
    "FP16",
    "FTRL",
    "SGD",
    "Adagrad",
    "AfterSightings",
    "Apply",
    "Async",
    "BoundedStaleness",
    "CancelledCallError",
    "Choice",
    "Client",
    "ClosedError",
    "Communicator",
    "Compensate",
    "ConnectionState",
    "Constant",
    "Context",
    "ContextEndedError",
    "ContextLostError",
    "DeadlineExceededError",
    "DiLoCo",
    "DistributedOptimizer",
    "DistributedScheduler",
    "DrainingError",
    "Eviction",
    "ForeignHandleError",
    "Int8",
    "InternalError",
    "InvalidArgumentError",
    "LazyAdam",
    "LocalSGD",
    "LocalSteps",
    "LookedUp",
    "NameConflictError",
    "NonFiniteGradientError",
    "Normal",
    "NotAllowedError",
    "OptimizerWithTables",
    "OverloadedError",
    "PartialRowWiseAdam",
    "Pending",
    "Policy",
    "PowerSGD",
    "Progress",
    "PsError",
    "Quorum",
    "RRef",
    "RandomK",
    "Reject",
    "RemoteError",
    "RemoteModule",
    "RemoteObject",
    "RemoteParameter",
    "Replica",
    "Replicas",
    "RowGroup",
    "RowWiseAdagrad",
    "Scale",
    "SchedulerWithTables",
    "SessionLostError",
    "Sign",
    "StaleHandleError",
    "StepNumbers",
    "Stepped",
    "Sync",
    "Table",
    "TensorBoard",
    "TooLargeError",
    "TopK",
    "UnavailableError",
    "Uniform",
    "UnknownMethodError",
    "UnknownNameError",
    "WithProbability",
    "Zeros",
    "Zstd",
    "by_value",
    "connect",
    "current_context",
    "progress",
    "register_codec",
]

__version__ = _release.RELEASE


def __getattr__(name: str) -> _Any:
    """The modules with the names of torch's, which are imported when they are first used.

    Most programs need none of them, and some need the service, or packages that may be missing.
    """
    # These forms of import do not ask this function again.
    if name == "nn":
        import trainer_client.nn as nn_

        return nn_
    if name == "optim":
        import trainer_client.optim as optim_

        return optim_
    if name == "autograd":
        import trainer_client.autograd as autograd_

        return autograd_
    if name in {"prefetch", "table", "look_up"}:
        raise AttributeError(f"{name}() is a method of the client that connect() returns: ps.{name}(…)")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
