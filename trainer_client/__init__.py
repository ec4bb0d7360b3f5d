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

Errors, codecs, policies, and what tables are made with stand in modules by subject: `tc.errors.ContextLostError`,
`tc.codecs.TopK`, `tc.policies.Sync`, `tc.tables.Adagrad`.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from ps_wire import release as _release
from ps_wire.close_names import hint as _hint
from ps_wire.codec.records import by_value
from ps_wire.errors import PsError
from ps_wire.tls import TLS
from trainer_client import codecs, errors, policies, tables
from trainer_client.client.client import Client
from trainer_client.client.connect import connect
from trainer_client.collectives.communicator import Communicator
from trainer_client.contexts.context import Context
from trainer_client.contexts.current import current_context
from trainer_client.handles.handles import RemoteModule, RemoteObject
from trainer_client.handles.parameters import RemoteParameter
from trainer_client.handles.references import RRef
from trainer_client.optimizers.optimizer import DistributedOptimizer
from trainer_client.optimizers.scheduler import DistributedScheduler
from trainer_client.pending import Pending
from trainer_client.replicas.local_steps import DiLoCo, LocalSGD, LocalSteps
from trainer_client.replicas.replica import Replica, Replicas
from trainer_client.reporting.progress import Progress, StepNumbers, progress
from trainer_client.reporting.tensorboard import TensorBoard
from trainer_client.session.presence import ConnectionState
from trainer_client.session.stepped import Stepped
from trainer_client.tables.table import Table

if _TYPE_CHECKING:
    from trainer_client.local_owners import local as local

__all__ = [
    "TLS",
    "Client",
    "Communicator",
    "ConnectionState",
    "Context",
    "DiLoCo",
    "DistributedOptimizer",
    "DistributedScheduler",
    "LocalSGD",
    "LocalSteps",
    "Pending",
    "Progress",
    "PsError",
    "RRef",
    "RemoteModule",
    "RemoteObject",
    "RemoteParameter",
    "Replica",
    "Replicas",
    "StepNumbers",
    "Stepped",
    "Table",
    "TensorBoard",
    "by_value",
    "codecs",
    "connect",
    "current_context",
    "errors",
    "policies",
    "progress",
    "tables",
]

__version__ = _release.RELEASE


def __getattr__(name: str) -> _Any:
    """The modules with the names of torch's, and `local`, which are imported when they are first used.

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
    if name == "local":
        try:
            from trainer_client.local_owners import local
        except ModuleNotFoundError as error:
            raise ImportError(
                f"tc.local() runs owners in this process, which need {error.name}: "
                "pip install 'torch-parameter-server[server]'"
            ) from error

        return local
    if name in {"prefetch", "table", "look_up"}:
        raise AttributeError(f"{name}() is a method of the client that connect() returns: ps.{name}(…)")
    for module in (errors, codecs, policies, tables):
        if name in module.__all__:
            raise AttributeError(
                f"{__name__} has no attribute {name!r}; it is tc.{module.__name__.partition('.')[2]}.{name}"
            )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_hint(name, __all__)}")
