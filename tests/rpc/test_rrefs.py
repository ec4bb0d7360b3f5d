"""References to values of members, under the names that torch's own suite gives these situations."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import pytest
import torch

from ps_wire.errors import DeadlineExceededError, RemoteError
from tests.rpc import situations as s
from tests.rpc.passes import TO
from tests.rpc.references import freed, references, settled
from trainer_client import rpc

TWO = torch.full((2,), 2.0)
SPARSE = torch.eye(3).to_sparse()


def add_remotely(to: str = TO, x: Any = None, y: Any = 1) -> rpc.RRef:
    return rpc.remote(to, torch.add, args=(torch.ones(2) if x is None else x, y))


def test_builtin_remote_ret() -> None:
    assert torch.equal(add_remotely().to_here(), TWO)


def test_builtin_remote_ret_sparse() -> None:
    assert torch.equal(add_remotely(x=SPARSE, y=SPARSE).to_here().to_dense(), torch.eye(3) * 2)


def test_builtin_remote_self() -> None:
    assert torch.equal(add_remotely("worker0").local_value(), TWO)


def test_builtin_remote_self_sparse() -> None:
    assert torch.equal(add_remotely("worker0", SPARSE, SPARSE).local_value().to_dense(), torch.eye(3) * 2)


def test_multi_builtin_remote_ret() -> None:
    rrefs = [add_remotely(y=n) for n in range(20)]
    assert [rref.to_here()[0].item() for rref in rrefs] == [n + 1 for n in range(20)]


def test_multi_builtin_remote_ret_sparse() -> None:
    rrefs = [rpc.remote(TO, torch.mul, args=(SPARSE, n)) for n in range(5)]
    assert [rref.to_here().to_dense()[0, 0].item() for rref in rrefs] == list(range(5))


def test_py_udf_remote() -> None:
    assert rpc.remote(TO, s.my_add, kwargs={"x": 2, "y": 3}).to_here() == 5


def test_self_py_udf_remote() -> None:
    rref = rpc.remote("worker0", s.my_add, args=(torch.ones(2), 3))
    assert torch.equal(rref.to_here(), torch.full((2,), 4.0)) and rref.is_owner()


def test_self_py_udf_remote_sparse() -> None:
    assert rpc.remote("worker0", s.my_add, args=(SPARSE, SPARSE)).to_here().is_sparse


def rref_as_rpc_arg(to: str) -> None:
    rref = rpc.remote("worker0", s.my_add, args=(torch.ones(2), 1))
    assert torch.equal(rpc.rpc_sync(to, s.add_rrefs, args=(rref, 1)), torch.full((2,), 3.0))
    assert torch.equal(rpc.rpc_async(to, s.add_rrefs, args=(rref, rref)).wait(), torch.full((2,), 4.0))


def test_self_remote_rref_as_rpc_arg() -> None:
    rref_as_rpc_arg(TO)


def test_self_remote_rref_as_rpc_arg_sparse() -> None:
    rref = rpc.remote("worker0", s.my_add, args=(SPARSE, SPARSE))
    assert rpc.rpc_sync(TO, s.add_rrefs, args=(rref, SPARSE)).is_sparse


def test_self_remote_rref_as_self_rpc_arg() -> None:
    rref_as_rpc_arg("worker0")


def test_self_remote_rref_as_self_rpc_arg_sparse() -> None:
    rref = rpc.remote("worker0", s.my_add, args=(SPARSE, SPARSE))
    assert rpc.rpc_sync("worker0", s.add_rrefs, args=(rref, SPARSE)).is_sparse


def rref_as_remote_arg(to: str) -> None:
    rref = rpc.remote("worker0", s.my_add, args=(torch.ones(2), 1))
    assert torch.equal(rpc.remote(to, s.add_rrefs, args=(rref, 1)).to_here(), torch.full((2,), 3.0))


def test_self_remote_rref_as_remote_arg() -> None:
    rref_as_remote_arg(TO)


def test_self_remote_rref_as_remote_arg_sparse() -> None:
    rref = rpc.remote("worker0", s.my_add, args=(SPARSE, SPARSE))
    assert rpc.remote(TO, s.add_rrefs, args=(rref, SPARSE)).to_here().is_sparse


def test_self_remote_rref_as_self_remote_arg() -> None:
    rref_as_remote_arg("worker0")


def test_self_remote_rref_as_self_remote_arg_sparse() -> None:
    rref = rpc.remote("worker0", s.my_add, args=(SPARSE, SPARSE))
    assert rpc.remote("worker0", s.add_rrefs, args=(rref, SPARSE)).to_here().is_sparse


def test_multi_py_udf_remote() -> None:
    rrefs = [rpc.remote(f"worker{n % 4}", s.my_add, kwargs={"x": n, "y": 1}) for n in range(20)]
    assert [rref.to_here() for rref in rrefs] == [n + 1 for n in range(20)]


def test_multi_py_udf_remote_sparse() -> None:
    rrefs = [rpc.remote(f"worker{n % 4}", s.my_add, args=(SPARSE, SPARSE)) for n in range(8)]
    assert all(rref.to_here().is_sparse for rref in rrefs)


def test_py_rref_args() -> None:
    a, b = rpc.remote(TO, s.my_add, args=(1, 2)), rpc.remote(TO, s.my_add, args=(3, 4))
    assert rpc.remote(TO, s.add_rrefs, args=(a, b)).to_here() == 10


def test_py_rref_args_sparse() -> None:
    a = rpc.remote(TO, s.my_add, args=(SPARSE, SPARSE))
    assert rpc.remote(TO, s.add_rrefs, args=(a, a)).to_here().is_sparse


def test_py_rref_args_user_share() -> None:
    a, b = rpc.remote("worker1", s.my_add, args=(1, 2)), rpc.remote("worker2", s.my_add, args=(3, 4))
    assert rpc.remote("worker3", s.add_rrefs, args=(a, b)).to_here() == 10


def test_py_rref_args_user_share_sparse() -> None:
    a = rpc.remote("worker1", s.my_add, args=(SPARSE, SPARSE))
    assert rpc.remote("worker3", s.add_rrefs, args=(a, a)).to_here().is_sparse


def test_py_rpc_rref_args() -> None:
    a, b = rpc.remote("worker1", s.my_add, args=(1, 2)), rpc.remote("worker2", s.my_add, args=(3, 4))
    assert rpc.rpc_sync("worker3", s.add_rrefs, args=(a, b)) == 10


def test_py_rpc_rref_args_sparse() -> None:
    a = rpc.remote("worker1", s.my_add, args=(SPARSE, SPARSE))
    assert rpc.rpc_sync("worker3", s.add_rrefs, args=(a, SPARSE)).is_sparse


def test_nested_remote() -> None:
    assert torch.equal(rpc.rpc_sync("worker1", s.remote_rref, args=("worker2", torch.ones(2), 1)).to_here(), TWO)


def test_nested_remote_sparse() -> None:
    assert rpc.rpc_sync("worker1", s.remote_rref, args=("worker2", SPARSE, SPARSE)).to_here().is_sparse


def test_nested_rref() -> None:
    outer = rpc.remote("worker1", s.remote_rref, args=("worker2", torch.ones(2), 1))
    inner = outer.to_here()
    assert inner.owner_name() == "worker2" and torch.equal(inner.to_here(), TWO)


def test_nested_rref_sparse() -> None:
    assert rpc.remote("worker1", s.remote_rref, args=("worker2", SPARSE, SPARSE)).to_here().to_here().is_sparse


def test_nested_rref_stress() -> None:
    outer = [rpc.remote("worker1", s.remote_rref, args=("worker2", torch.ones(2), n)) for n in range(20)]
    assert [rref.to_here().to_here()[0].item() for rref in outer] == [n + 1 for n in range(20)]


def test_nested_rref_stress_sparse() -> None:
    outer = [rpc.remote("worker1", s.remote_rref, args=("worker2", SPARSE, SPARSE)) for _ in range(10)]
    assert all(rref.to_here().to_here().is_sparse for rref in outer)


def test_remote_with_exception() -> None:
    rref = rpc.remote(TO, s.raises)
    with pytest.raises(ValueError, match="expected"):
        rref.to_here()
    assert not rref.confirmed_by_owner()
    mine = rpc.remote("worker0", s.nothing, args=(10,))
    with pytest.raises(TypeError):
        mine.to_here()


def test_remote_throw() -> None:
    with pytest.raises(ValueError, match="expected"):
        rpc.remote(TO, s.raises).to_here()


def test_rpc_return_rref() -> None:
    rref = rpc.rpc_sync("worker1", s.make_rref, args=(torch.ones(2),))
    assert rref.owner_name() == "worker1" and torch.equal(rref.to_here(), torch.ones(2))
    away = rpc.rpc_sync("worker1", s.remote_rref, args=("worker2", torch.ones(2), 1))
    assert away.owner() == rpc.get_worker_info("worker2") and torch.equal(away.to_here(), TWO)


def test_rref_forward_chain() -> None:
    rref = add_remotely("worker1")
    via = ["worker2", "worker3", "worker0", "worker1"] * 3
    assert torch.equal(rpc.rpc_sync("worker1", s.forward_rref, args=(rref, *via)), TWO)


def test_local_rref_no_fork() -> None:
    assert rpc.RRef(35).local_value() == 35 == rpc.RRef(35).to_here()


def test_a_reference_in_an_instance_of_a_registered_class_is_a_reference() -> None:
    rref = add_remotely()
    pair = rpc.rpc_sync("worker2", s.Pair, args=(rref, [s.Pair(1, {"x": rref})]))
    assert type(pair.left) is rpc.RRef and pair.left == rref and pair.right[0].right["x"] == rref
    assert torch.equal(pair.right[0].right["x"].to_here(), rref.to_here())


def test_local_value_not_on_owner() -> None:
    rref = add_remotely()
    with pytest.raises(RuntimeError, match=r"localValue\(\) on user 'worker0'\. Call it on owner 'worker1'"):
        rref.local_value()
    rref.to_here()


def test_return_local_rrefs() -> None:
    rrefs = [rpc.rpc_sync(TO, s.make_rref, args=([n],)) for n in range(5)]
    assert [rref.to_here() for rref in rrefs] == [[n] for n in range(5)]


def test_pass_local_rrefs() -> None:
    mine = rpc.RRef(torch.ones(2))
    for _ in range(3):
        assert torch.equal(rpc.rpc_sync(TO, s.to_here_of, args=(mine,)), torch.ones(2))
        assert torch.equal(rpc.rpc_async("worker2", s.add_rrefs, args=(mine, mine)).wait(), TWO)
        assert torch.equal(rpc.remote("worker3", s.add_rrefs, args=(mine, 1)).to_here(), TWO)


def test_remote_same_worker() -> None:
    a, b = add_remotely(), add_remotely()
    assert torch.equal(rpc.remote(TO, s.add_rrefs, args=(a, b)).to_here(), torch.full((2,), 4.0))


def test_owner_equality() -> None:
    mine, one, other = rpc.RRef(40), add_remotely(), add_remotely()
    assert one.owner() == other.owner() != mine.owner()
    assert mine.owner() == rpc.RRef(50).owner() != 23


def test_an_annotation_may_name_the_type_of_the_value() -> None:
    assert rpc.RRef[torch.Tensor].__origin__ is rpc.RRef
    assert rpc.RRef[torch.Tensor].__args__ == (torch.Tensor,)


def test_rref_str() -> None:
    rref = add_remotely()
    rref.to_here()
    assert str(rref.handle()) in repr(rref) and "of worker1" in repr(rref)
    assert repr(rpc.RRef(3)) == "<RRef of worker0: <RRef int>>"


def test_rref_get_future() -> None:
    rref = add_remotely()
    future = rref._get_future()
    assert future.wait() is rref and rref.confirmed_by_owner()
    assert rpc.RRef(3)._get_future().done()


def test_user_rrefs_confirmed() -> None:
    rref = add_remotely()
    rref.to_here()
    assert rref.confirmed_by_owner()
    assert rpc.rpc_sync("worker2", s.owner_of, args=(rref,)) == "worker1"


def test_user_rrefs_confirmed_remote() -> None:
    rref = rpc.rpc_sync("worker2", s.remote_rref, args=("worker1", torch.ones(2), 1))
    assert rref.confirmed_by_owner()


def test_rref_py_pickle_not_supported() -> None:
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(RuntimeError, match="Can not pickle rref in python pickler: pass it as an argument"):
            way(rpc.RRef(3))


def test_rref_timeout() -> None:
    rref = rpc.remote(TO, s.wait_for, args=("rref_timeout",), timeout=0.05)
    with pytest.raises(DeadlineExceededError):
        rref.to_here()
    rpc.rpc_sync(TO, s.let_go, args=("rref_timeout",))


def test_non_garbage_collected_user_rref_due_to_local_circular_dependency() -> None:
    circle: list[Any] = [add_remotely()]
    reference = circle[0].handle().ref
    circle.append(circle)
    del circle
    assert freed(reference)


def test_rref_leak() -> None:
    before = [references(f"worker{n}") for n in range(4)]
    rrefs = [rpc.rpc_sync("worker1", s.remote_rref, args=("worker2", torch.ones(2), n)) for n in range(10)]
    mine = rpc.RRef([1])
    assert [rpc.rpc_sync(f"worker{n}", s.to_here_of, args=(mine,)) for n in (1, 2, 3)] == [[1]] * 3
    values = [each.handle().ref for each in rrefs]
    # Counting would not do: references of other tests may be given back meanwhile.
    assert all(rpc.rpc_sync("worker2", s.is_there, args=(str(each),)) for each in values)
    del rrefs, mine
    assert all(freed(each) for each in values)
    for n in range(4):
        settled(f"worker{n}", before[n])


def test_rref_with_unpickleable_attributes() -> None:
    # What a reference refers to stays where it is, whatever it is.
    rref = rpc.remote(TO, s.Keeper, args=(3,))
    assert rpc.rpc_sync("worker2", s.call_method, args=(rref, "value")) == 3


def test_parameters_of_a_module_have_references_of_their_own() -> None:
    module = rpc.remote(TO, torch.nn.Linear, args=(2, 3))
    weight, bias = rpc.rpc_sync(TO, s.parameter_rrefs, args=(module,))
    assert weight.to_here().shape == (3, 2) and bias.to_here().shape == (3,)
    assert weight.handle().ref.parameter == "weight"


def test_a_reference_outlives_its_parent() -> None:
    parent = rpc.remote("worker1", s.Keeper, args=(4,))
    rpc.rpc_sync("worker2", s.keep, args=("child", parent))
    reference = parent.handle().ref
    del parent
    gc.collect()
    assert rpc.rpc_sync("worker2", s.call_kept, args=("child", "add", 1)) == 5
    rpc.rpc_sync("worker2", s.drop, args=("child",))
    assert freed(reference)


def test_the_error_of_a_creation_reaches_the_uses_of_its_reference() -> None:
    rref = rpc.remote(TO, s.Keeper, kwargs={"fail": True})
    with pytest.raises(RemoteError, match="it was told to fail"):
        rpc.rpc_sync("worker2", s.owner_of, args=(rref,))
