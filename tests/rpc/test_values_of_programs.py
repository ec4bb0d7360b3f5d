"""Tests values that programs for torch send by pickle: whole modules, and arrays of numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from ps_wire.errors import InvalidArgumentError
from tests.rpc import fitting as f
from tests.rpc import situations as s
from trainer_client import rpc


def test_a_server_sends_its_whole_model_to_all_trainers() -> None:
    server = f.Server(f.Line(2, 1))
    alone = f.Server(f.Line(2, 1))
    alone.model.load_state_dict(server.model.state_dict())
    rref = rpc.RRef(server)
    futures = [rpc.rpc_async(trainer, f.train, args=(rref,)) for trainer in f.TRAINERS]
    assert torch.futures.wait_all(futures) == [2, 2]
    for inputs in zip(*map(f.batches, f.TRAINERS), strict=True):
        for x in inputs:
            losses = alone.model(x).square().mean()
            alone.arrived.append(list(torch.autograd.grad(losses, list(alone.model.parameters()))))
        alone.step()
    assert all(map(torch.equal, server.model.parameters(), alone.model.parameters()))


def test_a_module_of_a_class_that_is_not_registered_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"Linear cannot be sent.*by_value"):
        rpc.rpc_sync("worker1", s.keep, args=("module", nn.Linear(2, 1)))


def test_an_array_is_an_argument_and_a_result() -> None:
    state = np.arange(4.0)
    found = rpc.rpc_sync("worker1", f.halved, args=(state,))
    assert type(found) is np.ndarray and found.tolist() == [0.0, 0.5, 1.0, 1.5] and state.tolist() == [0, 1, 2, 3]
    kept = rpc.remote("worker1", f.halved, args=(state,))
    assert rpc.rpc_sync("worker2", f.halved, args=(kept.to_here(),)).tolist() == [0.0, 0.25, 0.5, 0.75]


def test_an_optimizer_that_a_member_has_made_steps_there() -> None:
    weight = rpc.remote("worker1", f.new_weight)
    optimizer = rpc.remote("worker1", f.optimizer_of, args=([weight], 0.5))
    rpc.rpc_sync("worker1", f.set_gradient, args=(weight, 2.0))
    optimizer.rpc_sync().step()
    optimizer.rpc_sync().zero_grad()
    optimizer.rpc_sync().step()
    assert weight.to_here().tolist() == [-1.0, -1.0]
