"""Functions that take references, pass them on, and return them."""

from __future__ import annotations

from typing import Any

import torch

from ps_service import remote
from tests.rpc.differentiable import (
    my_add,
)
from trainer_client import rpc


@remote
def value_of(rref: rpc.RRef) -> Any:
    return rref.local_value()


@remote
def to_here_of(rref: rpc.RRef) -> Any:
    return rref.to_here()


@remote
def add_rrefs(x: rpc.RRef, y: Any) -> Any:
    return x.to_here() + (y.to_here() if isinstance(y, rpc.RRef) else y)


@remote
def make_rref(value: Any) -> rpc.RRef:
    return rpc.RRef(value)


@remote
def remote_rref(to: str, x: torch.Tensor, y: Any) -> rpc.RRef:
    """A reference to something a third member has."""
    return rpc.remote(to, my_add, args=(x, y))


@remote
def forward_rref(rref: rpc.RRef, *via: str) -> Any:
    """Passes a reference on, from member to member, and looks at its value at the end."""
    return rpc.rpc_sync(via[0], forward_rref, args=(rref, *via[1:])) if via else rref.to_here()


@remote
def owner_of(rref: rpc.RRef) -> str:
    return rref.owner_name()


@remote
def call_method(rref: rpc.RRef, method: str, *args: Any) -> Any:
    return getattr(rref.rpc_sync(), method)(*args)
