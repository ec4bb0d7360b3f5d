"""Tensors of members that others train through references."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from ps_service import hosted, remote
from trainer_client import autograd, rpc
from trainer_client.optim import DistributedOptimizer

START = torch.arange(6.0).reshape(2, 3) / 10

shared = START.clone().requires_grad_()
"""A leaf of each member, which its functions share."""


@remote
def fresh(rows: int = 2) -> torch.Tensor:
    """A new leaf with the same values every time."""
    return (torch.arange(3.0 * rows).reshape(rows, 3) / 10).requires_grad_()


@remote
def set_back() -> None:
    """Gives the shared leaf its first values, in place."""
    with torch.no_grad():
        shared.copy_(START)


@remote
def get_shared() -> torch.Tensor:
    return shared


@remote
def first_row() -> torch.Tensor:
    return shared[0]


@remote
def squares() -> torch.Tensor:
    return shared * shared


@remote
def fill(value: float) -> None:
    with torch.no_grad():
        shared.fill_(value)


@remote
def times(w: rpc.RRef, x: torch.Tensor) -> torch.Tensor:
    return w.local_value() * x


@remote
def times_shared(x: torch.Tensor) -> torch.Tensor:
    return shared * x


@remote
def times_part(values: rpc.RRef, part: int, n: float) -> torch.Tensor:
    result: torch.Tensor = values.local_value()[part] * n
    return result


@remote
def twice_of(value: rpc.RRef) -> torch.Tensor:
    result: torch.Tensor = value.to_here() * 2
    return result


@remote
def times_there(owner: str, w: rpc.RRef, x: torch.Tensor) -> torch.Tensor:
    """Asks the owner of the tensor, from another member."""
    return rpc.rpc_sync(owner, times, args=(w, x)) * 2


@remote
def times_everywhere(members: list[str], x: torch.Tensor) -> torch.Tensor:
    """The shared leaf of this member, and then those of others, one inside the other."""
    y = shared * x
    return rpc.rpc_sync(members[0], times_everywhere, args=(members[1:], y)) if members else y


@remote
def gradient_of(context_id: int, w: rpc.RRef) -> torch.Tensor | None:
    """What a pass has for a tensor, looked up as programs do it."""
    return autograd.get_gradients(context_id).get(w.local_value())


@remote
def gradient_of_shared(context_id: int) -> torch.Tensor | None:
    return autograd.get_gradients(context_id).get(shared)


@hosted
class Table(nn.Module):
    """A module of a user with an embedding."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(8, 3, mode="sum", sparse=sparse)
        with torch.no_grad():
            self.bag.weight.copy_(torch.arange(24.0).reshape(8, 3) / 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.bag(ids)
        return result


@remote
def look_up(module: rpc.RRef, ids: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = module.local_value()(ids)
    return result


@remote
def weight_of(module: rpc.RRef) -> torch.Tensor:
    """A parameter of a hosted module, as a plain result."""
    found: torch.Tensor = next(module.local_value().parameters())
    return found


@remote
def weight_gradient(context_id: int, module: rpc.RRef) -> torch.Tensor:
    return autograd.get_gradients(context_id)[next(module.local_value().parameters())]


@remote
def weight_is_a_key(context_id: int, module: rpc.RRef) -> list[bool]:
    """Whether the weight is found by all ways of looking into a dict."""
    weight = next(module.local_value().parameters())
    found = autograd.get_gradients(context_id)
    return [weight in found, any(key is weight for key in found), found.get(weight) is not None]


@remote
def asks_back(member: str, x: torch.Tensor) -> torch.Tensor:
    """Calls a member, which may be the one that has called this function."""
    return rpc.rpc_sync(member, times_shared, args=(x,))


@remote
def run_module(module: rpc.RRef, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = module.local_value()(x)
    return result


@remote
def steps_alone(w: rpc.RRef, owner: str, passes: int) -> None:
    """Trains a tensor of another member in passes of this member."""
    optimizer = DistributedOptimizer(torch.optim.SGD, [w], lr=1.0)
    for _ in range(passes):
        with autograd.context() as context_id:
            autograd.backward(context_id, [rpc.rpc_sync(owner, times, args=(w, torch.ones(2, 3))).sum()])
            optimizer.step(context_id)


@remote
def gradients_in_a_pass_of_its_own() -> torch.Tensor:
    """The gradient of the shared leaf in a pass that a thread of this member makes meanwhile."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(_own_pass).result()


def _own_pass() -> torch.Tensor:
    with autograd.context() as context_id:
        autograd.backward(context_id, [(shared * 5).sum()])
        return autograd.get_gradients(context_id)[shared]


@remote
def sparse_leaf() -> torch.Tensor:
    return torch.sparse_coo_tensor(
        [[0, 1, 1], [2, 0, 2]], [3.0, 4.0, 5.0], (3, 3), requires_grad=True, check_invariants=True
    )


@hosted
class Offset(nn.Module):
    """A module with a leaf that is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = torch.arange(3.0).requires_grad_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.offset


@remote
def offset_of(module: rpc.RRef) -> torch.Tensor:
    found: torch.Tensor = module.local_value().offset
    return found


@hosted
class Scaled(nn.Module):
    """A module that multiplies by a tensor behind a reference."""

    def __init__(self, w: rpc.RRef) -> None:
        super().__init__()
        self.w = w

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x * self.w.local_value()
        return result


kept: dict[str, torch.Tensor] = {}
"""What members have sent here, by name."""


@remote
def keep(name: str, x: torch.Tensor) -> None:
    kept[name] = x


@remote
def get_kept(name: str) -> torch.Tensor:
    return kept[name]


@remote
def gradient_by_itself(x: torch.Tensor) -> torch.Tensor | None:
    (x * x).sum().backward()
    return x.grad


@remote
def requires_grad(x: torch.Tensor) -> bool:
    return x.requires_grad


@hosted
class Keeper:
    """An object that trains what it was made with."""

    def __init__(self, w: torch.Tensor) -> None:
        self.w = w

    @remote
    def weight(self) -> torch.Tensor:
        return self.w
