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

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any
from typing import Final as _Final

import ps_wire as _ps_wire  # noqa: F401  (before anybody imports grpc)
from ps_wire import release as _release

if _TYPE_CHECKING:
    from ps_wire.codec.records import by_value
    from ps_wire.errors import PsError
    from ps_wire.tls import TLS
    from trainer_client import codecs, errors, policies, tables
    from trainer_client.client.client import Client
    from trainer_client.client.connect import connect
    from trainer_client.collectives.communicator import Communicator
    from trainer_client.contexts.context import Context
    from trainer_client.contexts.current import current_context
    from trainer_client.handles.following import ModuleChange
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
    from trainer_client.serving.pinned_module import PinnedModule
    from trainer_client.serving.pinned_table import PinnedTable
    from trainer_client.serving.readers import Reader
    from trainer_client.serving.snapshots import Snapshot
    from trainer_client.session.presence import ConnectionState
    from trainer_client.session.stepped import Stepped
    from trainer_client.tables.table import Table

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
    "ModuleChange",
    "Pending",
    "PinnedModule",
    "PinnedTable",
    "Progress",
    "PsError",
    "RRef",
    "Reader",
    "RemoteModule",
    "RemoteObject",
    "RemoteParameter",
    "Replica",
    "Replicas",
    "Snapshot",
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

_HOMES: _Final = {
    "TLS": "ps_wire.tls",
    "Client": "trainer_client.client.client",
    "Communicator": "trainer_client.collectives.communicator",
    "ConnectionState": "trainer_client.session.presence",
    "Context": "trainer_client.contexts.context",
    "DiLoCo": "trainer_client.replicas.local_steps",
    "DistributedOptimizer": "trainer_client.optimizers.optimizer",
    "DistributedScheduler": "trainer_client.optimizers.scheduler",
    "LocalSGD": "trainer_client.replicas.local_steps",
    "LocalSteps": "trainer_client.replicas.local_steps",
    "ModuleChange": "trainer_client.handles.following",
    "Pending": "trainer_client.pending",
    "PinnedModule": "trainer_client.serving.pinned_module",
    "PinnedTable": "trainer_client.serving.pinned_table",
    "Progress": "trainer_client.reporting.progress",
    "PsError": "ps_wire.errors",
    "Reader": "trainer_client.serving.readers",
    "RRef": "trainer_client.handles.references",
    "RemoteModule": "trainer_client.handles.handles",
    "RemoteObject": "trainer_client.handles.handles",
    "RemoteParameter": "trainer_client.handles.parameters",
    "Replica": "trainer_client.replicas.replica",
    "Replicas": "trainer_client.replicas.replica",
    "Snapshot": "trainer_client.serving.snapshots",
    "StepNumbers": "trainer_client.reporting.progress",
    "Stepped": "trainer_client.session.stepped",
    "Table": "trainer_client.tables.table",
    "TensorBoard": "trainer_client.reporting.tensorboard",
    "by_value": "ps_wire.codec.records",
    "connect": "trainer_client.client.connect",
    "current_context": "trainer_client.contexts.current",
    "progress": "trainer_client.reporting.progress",
}
"""Where these names are. They are imported when they are used first: most of them need torch, whose import takes
seconds, and a command of ps-service that only asks an owner does not."""

_MODULES: _Final = frozenset({"autograd", "codecs", "errors", "nn", "optim", "policies", "tables"})
"""The modules that are imported when they are used first. Most programs need none of those with names of torch's, and
some of these need the service, or packages that may be missing."""


def __getattr__(name: str) -> _Any:
    if name in _MODULES:
        return _import_module(f"{__name__}.{name}")
    if name.startswith("__"):
        # Tools ask every object for such names, and no close one is meant.
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _HOMES:
        value = globals()[name] = getattr(_import_module(_HOMES[name]), name)
        return value
    if name == "local":
        return _local()
    raise AttributeError(_missing(name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _local() -> _Any:
    try:
        return _import_module("trainer_client.local_owners").local
    except ModuleNotFoundError as error:
        raise ImportError(
            f"tc.local() runs owners in this process, which need {error.name}: "
            "pip install 'torch-parameter-server[server]'"
        ) from error


def _missing(name: str) -> str:
    """What to say of a name that is not here: where it may be instead."""
    from ps_wire.close_names import hint
    from trainer_client import codecs, errors, policies, tables

    if name in {"prefetch", "table", "look_up"}:
        return f"{name}() is a method of the client that connect() returns: ps.{name}(…)"
    for module in (errors, codecs, policies, tables):
        if name in module.__all__:
            return f"{__name__} has no attribute {name!r}; it is tc.{module.__name__.partition('.')[2]}.{name}"
    return f"module {__name__!r} has no attribute {name!r}{hint(name, __all__)}"
