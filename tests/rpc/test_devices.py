"""Device arguments: device maps, devices of the options, and `member/device` of remote modules."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ps_wire.errors import InvalidArgumentError
from trainer_client import autograd, rpc
from trainer_client.nn import RemoteModule
from trainer_client.rpc.current import agent
from trainer_client.rpc.options import DeviceMaps, usable

CPU = torch.device("cpu")


def test_options_take_the_device_maps_of_torch() -> None:
    options = rpc.TensorPipeRpcBackendOptions(device_maps={"worker1": {0: 1}}, devices=["cuda:0"])
    options.set_device_map("worker2", {"cuda:0": "cuda:2"})
    placement = options.placement()
    assert placement.here == torch.device("cuda:0")
    assert placement.there == {"worker1": torch.device("cuda:1"), "worker2": torch.device("cuda:2")}


def test_a_process_has_one_device() -> None:
    with pytest.raises(InvalidArgumentError, match=r"map of 'worker1' has 2 devices.*one pair"):
        rpc.TensorPipeRpcBackendOptions(device_maps={"worker1": {0: 1, 1: 0}})
    with pytest.raises(InvalidArgumentError, match=r"name cuda:0, cuda:1 for this process"):
        rpc.TensorPipeRpcBackendOptions(device_maps={"worker1": {0: 1}}, devices=[1])
    options = rpc.TensorPipeRpcBackendOptions(devices=["cuda:0"])
    with pytest.raises(InvalidArgumentError, match="for this process"):
        options.set_device_map("worker1", {1: 1})
    with pytest.raises(InvalidArgumentError, match="for this process"):
        options.set_devices([0, 1])
    assert options.placement().here == torch.device("cuda:0")


def test_a_machine_without_the_device_says_so() -> None:
    missing = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(InvalidArgumentError, match=f"this machine has no device '{missing}'"):
        usable(missing)
    assert usable("cpu") == CPU


def test_a_remote_module_on_another_device_than_its_owners() -> None:
    assert RemoteModule("worker1/cpu", nn.Linear, (2, 1)).forward(torch.ones(3, 2)).shape == (3, 1)
    with pytest.raises(InvalidArgumentError, match=r"'worker1' hosts on cpu, not on cuda:0: .*device='cuda:0'"):
        RemoteModule("worker1/cuda:0", nn.Linear, (2, 1))
    with pytest.raises(InvalidArgumentError, match="hosts on cpu, not on cuda"):
        RemoteModule("1/cuda", nn.Linear, (2, 1))


def test_a_device_map_names_the_members_device() -> None:
    maps = DeviceMaps({"worker1": {"cpu": "cuda:1"}}, None)
    with pytest.raises(InvalidArgumentError, match=r"'worker1' hosts on cuda:0, not on cuda:1"):
        maps.check("worker1", "cuda:0")
    maps.check("worker1", "cuda:1")
    maps.check("worker2", "cpu")


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The device that results arrive on: a device without data, which every machine has."""
    monkeypatch.setattr(agent(), "placement", DeviceMaps({"worker1": {"meta": "cpu"}}, None))
    return torch.device("meta")


def test_results_arrive_on_the_mapped_device(mapped: torch.device) -> None:
    x = torch.ones(2)
    assert rpc.rpc_sync("worker1", torch.add, args=(x, x)).device == mapped
    assert rpc.rpc_async("worker1", torch.add, args=(x, x)).wait().device == mapped
    assert rpc.remote("worker1", torch.add, args=(x, x)).to_here().device == mapped
    first, second = rpc.rpc_sync("worker1", torch.split, args=(x, 1))
    assert (first.device, second.device) == (mapped, mapped)


def test_without_a_map_results_are_on_the_cpu() -> None:
    assert rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2), 1)).device == CPU


@pytest.mark.gpu
def test_gradients_pass_a_result_that_moved_to_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent(), "placement", DeviceMaps({"worker1": {"cuda:0": "cpu"}}, None))
    x = torch.ones(2, device="cuda:0", requires_grad=True)
    with autograd.context() as context_id:
        result = rpc.rpc_sync("worker1", torch.mul, args=(x, torch.tensor(3.0)))
        assert result.is_cuda
        autograd.backward(context_id, [result.sum()])
        gradient = autograd.get_gradients(context_id)[x]
    assert gradient.is_cuda and gradient.tolist() == [3.0, 3.0]
