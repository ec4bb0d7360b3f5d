"""What the tests of autograd and training share: owners, local twins, and comparisons with local torch."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import torch
from torch import nn

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.hosting.views import CLEAN_CALLS
from ps_service.parameters.state import ParameterState
from ps_service.server import Server
from tests import autograd_models, graph_models, hosted_models, optimizer_models
from tests.allowed import allowed

T = TypeVar("T")

MODELS = "tests.autograd_models"
OPTIMIZERS = "tests.optimizer_models"


@asynccontextmanager
async def owners(*names: str, threads: int = 8) -> AsyncIterator[list[Server]]:
    """Owners in this process that host the classes of all modules of test models."""
    offered = allowed(hosted_models, autograd_models, graph_models, optimizer_models)
    servers = [Server(Engine(name, offered, threads=threads)) for name in names]
    for server in servers:
        await server.start()
    try:
        yield servers
    finally:
        for server in servers:
            await server.stop()


@asynccontextmanager
async def training(*names: str) -> AsyncIterator[tuple[list[Server], tc.Client]]:
    """Owners, and one trainer of all of them."""
    async with owners(*(names or ("ps0",))) as servers, tc.connect(*(each.address for each in servers)) as client:
        yield servers, client


async def apart(work: Coroutine[Any, Any, T]) -> T:
    """Runs what another trainer does meanwhile: in a task that is not inside this one's context."""
    return await asyncio.create_task(work, context=contextvars.Context())


async def twin(handle: tc.RemoteModule, local: nn.Module) -> nn.Module:
    """Gives a local module the numbers of a remote one."""
    local.load_state_dict(await handle.state_dict())
    return local


def hosted_value(server: Server, handle: tc.RRef) -> Any:
    """The object behind a handle, on an owner in this process."""
    return server.engine.registry.find(handle.ref).value


def parameter_states(server: Server) -> list[ParameterState]:
    """The cells of all parameters that an owner hosts."""
    return [parameter_state for each in server.engine.registry.objects() for parameter_state in each.parameter_states]


def pins(server: Server) -> int:
    """How many readers and open passes an owner's parameters are pinned by."""
    return sum(parameter_state.pin.reading + parameter_state.pin.saved for parameter_state in parameter_states(server))


def same(found: torch.Tensor | None, wanted: torch.Tensor | None, what: object) -> None:
    """Holds a gradient or parameter to local torch's, and None to None."""
    if found is None or wanted is None:
        assert found is None and wanted is None, f"{what}: remote {found}, local {wanted}"
        return
    assert found.is_sparse == wanted.is_sparse, f"{what}: only one of them is sparse"
    found, wanted = (found.to_dense(), wanted.to_dense()) if found.is_sparse else (found, wanted)
    torch.testing.assert_close(found, wanted, msg=lambda text: f"{what}: {text}")


async def same_gradients(
    ctx: tc.Context,
    pairs: Iterable[tuple[tc.RemoteModule, nn.Module]],
    leaves: Mapping[str, tuple[torch.Tensor, torch.Tensor]] | None = None,
    where: str = "",
) -> None:
    """Holds all gradients of a context to those in `.grad` of the local twins.

    Args:
        ctx: The pass.
        pairs: Remote modules and their local twins.
        leaves: By what to call them, local tensors of the pass and their twins.
        where: Begins the message of a failure.
    """
    found = await ctx.get_gradients()
    compared = 0
    for handle, local in pairs:
        for name, parameter in local.named_parameters():
            gradient = found.get(handle.parameter(name))
            compared += gradient is not None
            same(gradient, parameter.grad, f"{where}gradient of {handle.class_name}.{name}")
    for name, (leaf, wanted) in (leaves or {}).items():
        compared += leaf in found
        same(found.get(leaf), wanted.grad, f"{where}gradient of {name}")
    assert compared == len(found), f"{where}the context holds gradients of something else"


async def same_state(handle: tc.RemoteModule, local: nn.Module) -> None:
    """Holds parameters and buffers to those of the local twin."""
    state = await handle.state_dict()
    wanted = local.state_dict()
    assert list(state) == list(wanted)
    for name, value in wanted.items():
        same(state[name], value, name)


def identical(one: Any, other: Any) -> bool:
    """Whether two states are the same to the bit, also where they are not numbers."""
    if isinstance(one, torch.Tensor):
        if not isinstance(other, torch.Tensor) or one.dtype != other.dtype or one.shape != other.shape:
            return False
        return torch.equal(*(each.reshape(-1).contiguous().view(torch.uint8) for each in (one, other)))
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(identical(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return isinstance(other, type(one)) and len(one) == len(other) and all(map(identical, one, other))
    return type(one) is type(other) and bool(one == other)


async def run_before(ps: tc.Client, net: tc.RemoteModule, *args: Any) -> None:
    """Runs the first calls of a module, which have it to themselves; later ones run on views, side by side."""
    for _ in range(CLEAN_CALLS):
        await net(*args)
        async with ps.context():
            await net(*args)
