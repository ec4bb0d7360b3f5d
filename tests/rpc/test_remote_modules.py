"""Remote modules, under the names that torch's own suite gives these situations."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from ps_wire.errors import InvalidArgumentError
from tests.rpc import sharing
from tests.rpc import situations as s
from trainer_client import rpc
from trainer_client.nn import RemoteModule

TO = "worker1"
X = torch.tensor([1.0, 3.0])


def test_bad_module() -> None:
    for bad in (s.Keeper, s.my_add, "torch.nn.Linear", nn.Linear(1, 1)):
        with pytest.raises(
            ValueError, match=r"Expect `module_cls\(\*args, \*\*kwargs\)` returns an instance of <class nn.Module>,"
        ):
            RemoteModule(TO, bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="names no device"):
        RemoteModule(f"{TO}/nowhere", nn.Linear, (1, 1))
    with pytest.raises(ValueError, match="names no member"):
        RemoteModule("/cpu", nn.Linear, (1, 1))


def test_forward_async() -> None:
    module = RemoteModule(f"{TO}/cpu", s.Scale, args=(3.0,))
    assert module.forward_async(X).wait().tolist() == [3.0, -9.0]


def test_forward_sync() -> None:
    module = RemoteModule(TO, s.Scale, args=(3.0,))
    assert module.forward(X).tolist() == module(X).tolist() == [3.0, -9.0]


def test_forward_with_kwargs() -> None:
    module = RemoteModule(TO, nn.Linear, kwargs={"in_features": 2, "out_features": 1})
    assert torch.equal(module.forward(input=X), module.forward_async(input=X).wait())


def test_remote_parameters() -> None:
    module = RemoteModule(TO, nn.Sequential, ())
    assert module.remote_parameters() == []
    linear = RemoteModule(TO, nn.Linear, (2, 3))
    assert [tuple(rref.to_here().shape) for rref in linear.remote_parameters()] == [(3, 2), (3,)]
    chain = RemoteModule(TO, s.Chain)
    assert len(chain.remote_parameters()) == 2 and chain.remote_parameters(recurse=False) == []


def test_get_module_rref() -> None:
    module = RemoteModule(TO, s.Scale)
    rref = module.get_module_rref()
    assert rref is module.get_module_rref() is module.module_rref and rref.owner_name() == TO
    assert len(rpc.rpc_sync(TO, s.parameter_rrefs, args=(rref,))) == 1


def test_train_eval() -> None:
    module = RemoteModule(TO, nn.Dropout, (0.5,))
    module.eval()
    assert torch.equal(module.forward(torch.ones(100)), torch.ones(100))
    module.train()
    assert not torch.equal(module.forward(torch.ones(100)), torch.ones(100))
    assert module.training


def test_the_mode_of_a_remote_module_is_that_of_the_module_for_functions_of_its_owner() -> None:
    module, other = RemoteModule(TO, nn.Dropout, (0.5,)), None
    rref = module.get_module_rref()
    other = RemoteModule.init_from_module_rref(TO, rref)
    for mode in (True, False, True):
        assert module.train(mode) is module
        for to in (TO, "worker0"):
            # A module that another member has is called there.
            assert rpc.rpc_sync(to, sharing.mode_of, args=(module,)) is mode
        assert rpc.rpc_sync(TO, sharing.mode_behind, args=(rref,)) is mode
        # Those who call it themselves choose the mode themselves.
        assert not torch.equal(other.forward(torch.ones(100)), torch.ones(100)) and other.training
    rref.rpc_sync().eval()
    assert rpc.rpc_sync(TO, sharing.mode_behind, args=(rref,)) is False
    for wrong in (1, None, "yes"):
        with pytest.raises(ValueError, match="training mode is expected to be boolean"):
            module.train(wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="training mode is expected to be boolean"):
            rref.rpc_sync().train(wrong)


def test_a_mode_that_a_function_sets_stays_for_all_that_use_the_reference() -> None:
    rref, x = rpc.remote(TO, nn.Dropout, args=(0.5,)), torch.ones(100)
    for mode in (False, True, False):
        rpc.rpc_sync(TO, sharing.set_mode, args=(rref, mode))
        assert rpc.rpc_sync(TO, sharing.modes_behind, args=(rref,)) == [mode]
        for found in (rref.rpc_sync().forward(x), rref.remote().forward(x).to_here()):
            assert torch.equal(found, x) is not mode


def test_a_part_of_a_module_has_a_mode_of_its_own() -> None:
    rref = rpc.remote(TO, s.Chain)
    rpc.rpc_sync(TO, sharing.set_mode, args=(rref, False, "layer"))
    assert rpc.rpc_sync(TO, sharing.modes_behind, args=(rref,)) == [True, False]
    rref.rpc_sync().eval()
    assert rpc.rpc_sync(TO, sharing.modes_behind, args=(rref,)) == [False, False]
    rpc.rpc_sync(TO, sharing.set_mode, args=(rref, True, "layer"))
    assert rpc.rpc_sync(TO, sharing.modes_behind, args=(rref,)) == [False, True]


def test_unsupported_methods() -> None:
    module = RemoteModule(TO, nn.Linear, (2, 2))
    for name in ("parameters", "state_dict", "to", "cuda", "children", "zero_grad", "register_forward_hook"):
        with pytest.raises(ValueError, match=f"Method ``{name}`` not supported for RemoteModule"):
            getattr(module, name)()
    with pytest.raises(ValueError, match="Please use ``remote_parameters`` instead"):
        module.parameters()
    with pytest.raises(AttributeError, match="a RemoteModule has no 'nonsense'"):
        module.nonsense  # noqa: B018


def test_send_remote_module_with_a_new_attribute_not_pickled_over_the_wire() -> None:
    module = RemoteModule(TO, s.Scale)
    module.note = "mine"
    sent = rpc.rpc_sync("worker2", s.Pair, args=(module, 1)).left
    assert type(sent) is RemoteModule and not hasattr(sent, "note")


def test_remote_module_py_pickle_not_supported() -> None:
    module = RemoteModule(TO, s.Scale)
    for way in (pickle.dumps, copy.deepcopy):
        with pytest.raises(RuntimeError, match="Cannot pickle RemoteModule in python pickler"):
            way(module)


def test_send_remote_module_over_the_wire() -> None:
    module = RemoteModule("worker1", s.Scale, args=(3.0,))
    for to in ("worker0", "worker1", "worker2"):
        assert rpc.rpc_sync(to, s.forward_module, args=(module, X)).tolist() == [3.0, -9.0]


def test_create_remote_module_from_module_rref() -> None:
    rref = rpc.remote(TO, s.Scale, args=(3.0,))
    module = RemoteModule.init_from_module_rref(TO, rref)
    assert module.forward(X).tolist() == [3.0, -9.0]
    assert (module.on, module.device) == (TO, "cpu")
    # As in torch, the reference says where the module is.
    assert RemoteModule.init_from_module_rref("worker2/cpu", rref).on == TO
    with pytest.raises(ValueError, match="names no device"):
        RemoteModule.init_from_module_rref("worker1/nowhere", rref)
    with pytest.raises(InvalidArgumentError, match="module_rref must be an RRef"):
        RemoteModule.init_from_module_rref(TO, module)  # type: ignore[arg-type]


@pytest.mark.parametrize("maker", ["worker0", "worker1", "worker2"])
def test_a_remote_module_may_be_made_from_a_reference_on_any_member(maker: str) -> None:
    rref = rpc.remote(TO, s.Scale, args=(3.0,))
    module = rpc.rpc_sync(maker, RemoteModule.init_from_module_rref, args=(maker, rref))
    assert type(module) is RemoteModule and module.on == TO and module.module_rref == rref
    assert module.forward(X).tolist() == [3.0, -9.0]
    assert rpc.rpc_sync("worker2", s.forward_module, args=(module, X)).tolist() == [3.0, -9.0]
    with pytest.raises(RuntimeError, match="module_rref must be an RRef"):
        rpc.rpc_sync(maker, RemoteModule.init_from_module_rref, args=(maker, 3))


def test_attributes_arrive_with_a_remote_module() -> None:
    module = RemoteModule("rank:1/cpu", nn.Linear, (2, 2))
    module.eval()
    sent = rpc.rpc_sync("worker2", s.Pair, args=(module, 1)).left
    assert (sent.on, sent.device, sent.training) == (module.on, "cpu", False)
    assert sent.on == rpc.get_worker_info(module.on).name
    assert not sent.is_device_map_set and not sent.is_scriptable
    with pytest.raises(AttributeError):
        module.on = "worker2"
