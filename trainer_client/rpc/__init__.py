"""Calls between processes, with the names and semantics of `torch.distributed.rpc`.

    from trainer_client import rpc
    from ps_service import hosted, remote

    @remote
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    rpc.init_rpc("trainer0", directory="127.0.0.1:50051")
    rpc.rpc_sync("trainer1", scaled, args=(torch.ones(2), 3.0))
    rpc.shutdown()

Every member of a group can call all others and be called by them. Functions and classes travel by name, and have to be
marked `@remote` or `@hosted`; listed functions of torch need no mark. Nothing is pickled.
"""

from ps_wire.codec.records import by_value
from ps_wire.decorators import async_execution, hosted
from trainer_client.rpc import functions
from trainer_client.rpc.futures import Future, collect_all, wait_all
from trainer_client.rpc.invoke import (
    address,
    get_rpc_timeout,
    get_worker_info,
    get_worker_infos,
    remote,
    rpc_async,
    rpc_sync,
    set_rpc_timeout,
)
from trainer_client.rpc.joining import init_rpc, shutdown
from trainer_client.rpc.options import BackendType, RpcBackendOptions, TensorPipeRpcBackendOptions
from trainer_client.rpc.rendezvous import all_gather, barrier
from trainer_client.rpc.rref import RRef
from trainer_client.rpc.workers import WorkerInfo

__all__ = [
    "BackendType",
    "Future",
    "RRef",
    "RpcBackendOptions",
    "TensorPipeRpcBackendOptions",
    "WorkerInfo",
    "address",
    "all_gather",
    "async_execution",
    "barrier",
    "by_value",
    "collect_all",
    "functions",
    "get_rpc_timeout",
    "get_worker_info",
    "get_worker_infos",
    "hosted",
    "init_rpc",
    "remote",
    "rpc_async",
    "rpc_sync",
    "set_rpc_timeout",
    "shutdown",
    "wait_all",
]
