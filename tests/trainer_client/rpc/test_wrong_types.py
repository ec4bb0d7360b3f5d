"""Tests that the functions with torch's names say what they take, where they are given something else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from ps_wire.errors import InvalidArgumentError
from tests import hosted_models
from trainer_client import rpc
from trainer_client.nn import RemoteModule
from trainer_client.optim import DistributedOptimizer
from trainer_client.rpc.own_owner import allowing


@pytest.fixture(scope="module")
def member() -> Iterator[None]:
    """This process is the only member of a group."""
    rpc.init_rpc("only", rank=0, directory="self")
    yield
    rpc.shutdown()


X = torch.ones(3)
FUTURES = "incompatible function arguments: futures must be a list of futures"
PARAMETERS = "params_rref must be a list of references to parameters and tensors, or of groups of them, not a"

CALLS: list[tuple[str, Callable[[], Any], type[Exception], str]] = [
    (
        "a forgotten comma",
        lambda: rpc.rpc_sync("only", torch.neg, args=(X)),
        TypeError,
        "as in args=(x,), not a Tensor",
    ),
    ("one number", lambda: rpc.rpc_async("only", torch.neg, args=5), TypeError, "args must be a tuple"),  # type: ignore[arg-type]
    ("a text", lambda: rpc.remote("only", "ab", args="ab"), TypeError, "args must be a tuple"),
    (
        "a list of keyword arguments",
        lambda: rpc.rpc_sync("only", torch.neg, args=(X,), kwargs=[1]),  # type: ignore[arg-type]
        TypeError,
        "kwargs must be a dict of arguments by name, not a list",
    ),
    ("values for futures", lambda: rpc.wait_all([1]), TypeError, FUTURES),  # type: ignore[list-item]
    ("nothing for futures", lambda: rpc.wait_all(None), TypeError, FUTURES),  # type: ignore[arg-type]
    ("one future", lambda: rpc.collect_all(rpc.rpc_async("only", torch.neg, (X,))), TypeError, FUTURES),  # type: ignore[arg-type]
    ("no parameters", lambda: DistributedOptimizer(torch.optim.SGD, None), TypeError, PARAMETERS),  # type: ignore[arg-type]
    ("one reference", lambda: DistributedOptimizer(torch.optim.SGD, rpc.RRef(X)), TypeError, PARAMETERS),  # type: ignore[arg-type]
    (
        "one tensor",
        lambda: DistributedOptimizer(torch.optim.SGD, nn.Parameter(X)),
        TypeError,
        f"{PARAMETERS} Parameter",
    ),
    (
        "no member",
        lambda: RemoteModule(None, nn.Linear, (1, 1)),
        ValueError,
        "None names no member; say 'ps' or 'ps/cpu'",
    ),  # type: ignore[arg-type]
]


BEGINNINGS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"rank": 0, "world_size": "1"}, TypeError, "world_size is a number, not a str"),
    ({"directory": ["127.0.0.1:1"]}, InvalidArgumentError, "directory is one address, host:port, or 'self', and not ["),
    ({"directory": 50051}, InvalidArgumentError, "directory is one address, host:port, or 'self', and not 50051"),
    ({"rank": 0, "world_size": 1, "allow": [3]}, ValueError, "3 is decorated with neither @hosted nor @remote"),
    ({"rank": 0, "world_size": 1, "allow": 3}, ValueError, "3 is decorated with neither @hosted nor @remote"),
]


@pytest.mark.parametrize(("given", "error", "text"), BEGINNINGS, ids=str)
def test_a_beginning(given: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        rpc.init_rpc("other", **given)


@pytest.mark.parametrize("port", ["x", "-1", "65536", ""])
def test_a_port(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", port)
    with pytest.raises(InvalidArgumentError, match=f"MASTER_PORT is the port of rank 0, .*not '{port}'"):
        rpc.init_rpc("other", rank=0, world_size=1)


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"num_worker_threads": "16"}, "num_worker_threads is a whole number from 0"),
    ({"num_worker_threads": -1}, "num_worker_threads is a whole number from 0"),
    ({"init_method": 3}, "init_method is a text, not 3"),
    ({"device_maps": "cuda:0"}, "device_maps has a map for each member"),
    ({"device_maps": {"ps0": "cuda:0"}}, "device_maps has a map for each member"),
]


@pytest.mark.parametrize(("given", "text"), OPTIONS, ids=str)
def test_options(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        rpc.TensorPipeRpcBackendOptions(**given)


def test_one_module_is_offered_as_a_list_of_one_is() -> None:
    for one in (hosted_models, hosted_models.__name__):
        assert allowing(one).named("tests.hosted_models.Counter") is hosted_models.Counter  # type: ignore[arg-type]


@pytest.mark.usefixtures("member")
@pytest.mark.parametrize(("call", "error", "text"), [row[1:] for row in CALLS], ids=[row[0] for row in CALLS])
def test_calls(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        call()
