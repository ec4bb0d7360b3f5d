"""Tests that the value behind a reference is one object, which members change for each other."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from ps_wire.errors import InvalidArgumentError, PsError, TooLargeError
from tests.rpc import sharing as s
from tests.rpc.passes import TO
from trainer_client import autograd, rpc

HERE = "worker0"
VALUES: list[Callable[[], Any]] = [
    dict,
    list,
    lambda: s.OrderedDict(a=1),
    lambda: {"nested": [torch.zeros(2), (torch.zeros(2),)]},
    s.Box,
    lambda: torch.zeros(2),
    lambda: torch.zeros(2, requires_grad=True),
    lambda: torch.eye(2).to_sparse(),
    lambda: torch.nn.Parameter(torch.zeros(2)),
    lambda: s.CIRCLE,
    lambda: s.CANNOT_BE_SENT,
    object,
]


@pytest.mark.parametrize("make", VALUES)
def test_a_value_is_the_same_object_before_and_after_it_is_shared(make: Callable[[], Any]) -> None:
    value = make()
    rref = rpc.RRef(value)
    assert rref.local_value() is value
    # Through a member and back: the code that it calls here gets the object, too.
    s.SEEN.clear()
    rpc.rpc_sync(TO, s.show_to, args=(HERE, rref))
    (seen,) = s.SEEN
    assert seen == id(value)
    assert rref.local_value() is value and rref.to_here() is value


def test_members_change_the_value_of_another() -> None:
    value: dict[str, Any] = {}
    rref = rpc.RRef(value)
    rpc.rpc_sync(TO, s.change_at, args=(HERE, rref, "from worker1"))
    rpc.rpc_sync("worker2", s.change_at, args=(HERE, rref, "from worker2"))
    assert value == {"from worker1": 1, "from worker2": 1}
    value["from here"] = 1
    assert rpc.rpc_sync(TO, s.fetched, args=(rref,)) == value


def test_two_references_of_one_object_show_the_same() -> None:
    value: list[Any] = []
    one, other = rpc.RRef(value), rpc.RRef(value)
    rpc.rpc_sync(HERE, s.append, args=(one, "one"))
    rpc.rpc_sync(HERE, s.append, args=(other, "other"))
    assert value == ["one", "other"] == rpc.rpc_sync(TO, s.fetched, args=(one,))
    assert rpc.rpc_sync(HERE, s.is_same, args=(one, other))


def test_an_instance_that_travels_by_value_is_changed_where_it_is() -> None:
    box = s.Box()
    rref = rpc.RRef(box)
    assert rpc.rpc_sync(HERE, s.append, args=(rref, 1)) == 1
    assert rref.rpc_sync().put(2) == 2
    assert box.items == [1, 2] == rpc.rpc_sync(TO, s.fetched, args=(rref,)).items


def test_tensors_inside_a_value_are_its_own() -> None:
    value = {"nested": [torch.zeros(2), (torch.zeros(2),)], "leaf": torch.zeros(2, requires_grad=True)}
    rref = rpc.RRef(value)
    for path in (("nested", 0), ("nested", 1, 0), ("leaf",)):
        rpc.rpc_sync(HERE, s.add_one, args=(rref, *path))
    assert value["nested"][0].tolist() == value["nested"][1][0].tolist() == value["leaf"].tolist() == [1, 1]


@pytest.mark.parametrize("name", ["TABLE", "ORDERED", "TENSOR", "LEAF", "CIRCLE", "CANNOT_BE_SENT"])
@pytest.mark.parametrize("function", [s.a_global, s.rref_of_global, s.global_later])
@pytest.mark.parametrize("to", [TO, HERE])
def test_a_result_that_stays_is_the_object_itself(to: str, function: Any, name: str) -> None:
    if function is s.rref_of_global:
        rref = rpc.rpc_sync(to, function, args=(name,))
    else:
        rref = rpc.remote(to, function, args=(name,))
    assert rpc.rpc_sync(to, s.is_global, args=(rref, name))
    if to == HERE:
        assert rref.local_value() is getattr(s, name)


def test_a_result_that_stays_is_changed_in_both_directions() -> None:
    rref = rpc.remote(TO, s.a_global, args=("TABLE",))
    rpc.rpc_sync(TO, s.set_item, args=(rref, "a", torch.ones(2)))
    assert torch.equal(rpc.rpc_sync(TO, s.a_global, args=("TABLE",))["a"], torch.ones(2))
    rpc.rpc_sync(TO, s.add_one, args=(rref, "a"))
    copy = rref.to_here()
    assert copy["a"].tolist() == [2, 2]
    copy["b"] = 1
    assert "b" not in rref.to_here()
    again = rpc.rpc_sync(TO, s.rref_of_global, args=("TABLE",))
    assert rpc.rpc_sync(TO, s.is_same, args=(rref, again))


def test_a_method_gives_a_reference_to_what_its_object_keeps() -> None:
    cache = rpc.remote(TO, s.Cache)
    for rref in (cache.rpc_sync().reference(), cache.remote().itself()):
        assert cache.rpc_sync().is_it(rref)
        rpc.rpc_sync(TO, s.add_one, args=(rref, "layers", 1, 0))
    assert cache.rpc_sync().itself()["layers"][1][0].tolist() == [2, 2]
    rpc.rpc_sync(TO, s.set_item, args=(rref, "new", 1))
    assert cache.rpc_sync().keys() == ["layers", "new"]


def test_values_are_the_same_in_a_pass_and_after_it() -> None:
    cache = rpc.remote(TO, s.Cache)
    x = torch.ones(2, requires_grad=True)
    with autograd.context() as context_id:
        references = [cache.rpc_sync().reference(), cache.remote().itself()]
        assert all(cache.rpc_sync().is_it(rref) for rref in references)
        rpc.rpc_sync(TO, s.set_item, args=(references[0], "in a pass", 1))
        loss = rpc.rpc_sync(TO, s.twice_in, args=({}, x))["twice"].sum()
        autograd.backward(context_id, [loss])
        assert autograd.get_gradients(context_id)[x].tolist() == [2, 2]
    rpc.rpc_sync(TO, s.set_item, args=(references[1], "after it", 1))
    assert cache.rpc_sync().keys() == ["layers", "in a pass", "after it"]


def test_gradients_go_back_through_results_that_stay() -> None:
    x = torch.ones(2, requires_grad=True)
    with autograd.context() as context_id:
        found = rpc.remote(TO, s.twice_in, args=({"plain": torch.zeros(2)}, x))
        autograd.backward(context_id, [rpc.rpc_sync(TO, s.sum_of, args=(found, "twice"))])
        assert autograd.get_gradients(context_id)[x].tolist() == [2, 2]
    # Its tensors have a history, so it is a copy; that copy is one object, too.
    rpc.rpc_sync(TO, s.set_item, args=(found, "later", 1))
    assert list(found.to_here()) == ["plain", "twice", "later"]


def test_what_a_module_keeps_is_changed_where_it_is() -> None:
    module = rpc.remote(TO, s.Recorder)
    for rref in (module.rpc_sync().reference("log"), module.remote().itself("log")):
        rpc.rpc_sync(TO, s.append, args=(rref, 1))
    tensors = module.rpc_sync().reference("log")
    rpc.rpc_sync(TO, s.append, args=(tensors, torch.ones(2)))
    rpc.rpc_sync(TO, s.append, args=(module.rpc_sync().reference("log"), 1))
    assert module.rpc_sync().length() == 4
    # A result does not share the tensors that the module keeps; a reference that its method makes does.
    rpc.rpc_sync(TO, s.append, args=(module.remote().itself("log"), 1))
    assert module.rpc_sync().length() == 4


@pytest.mark.parametrize("name", ["weight", "steps"])
def test_results_do_not_share_memory_with_a_module(name: str) -> None:
    module = rpc.remote(TO, s.Recorder)
    rref = module.remote().in_a_list(name)
    before = rref.to_here()[0]
    rpc.rpc_sync(TO, s.add_one, args=(rref, 0))
    assert torch.equal(module.rpc_sync().in_a_list(name)[0], before)


def test_results_of_functions_do_not_share_memory_with_a_module() -> None:
    module = rpc.remote(TO, s.Recorder)
    rref = rpc.remote(TO, s.steps_of, args=(module,))
    rpc.rpc_sync(TO, s.add_one, args=(rref, 0))
    assert rpc.rpc_sync(TO, s.steps_of, args=(module,))[0].tolist() == [0, 0]


@pytest.mark.parametrize("way", ["itself", "reference"])
def test_a_container_of_layers_that_stays_is_not_emptied_by_later_calls(way: str) -> None:
    module = rpc.remote(TO, s.Recorder)
    rref = module.remote().itself("layers") if way == "itself" else module.rpc_sync().reference("layers")
    for _ in range(3):
        module.rpc_sync().forward_nothing()
        assert rpc.rpc_sync(TO, s.count_of, args=(rref,)) == 0


def test_a_view_of_a_tensor_that_stays_shares_its_memory() -> None:
    rref = rpc.remote(TO, torch.zeros, args=((2, 2),))
    view = rref.remote().view(4)
    view.rpc_sync().add_(1)
    assert rref.to_here().tolist() == [[1, 1], [1, 1]]


def test_a_view_does_not_write_to_what_a_pass_needs() -> None:
    x = torch.ones(2, requires_grad=True)
    with autograd.context() as context_id:
        rref = rpc.remote(TO, torch.exp, args=(x,))
        rref.to_here()
        view = rref.remote().detach()
        view.remote().add_(1).to_here()
        autograd.backward(context_id, [rpc.rpc_sync(TO, torch.mul, args=(rref.to_here(), 2)).sum()])
        torch.testing.assert_close(autograd.get_gradients(context_id)[x], 2 * torch.ones(2).exp())


def test_what_cannot_be_sent_stays_and_says_so_when_it_is_asked_for() -> None:
    for name, error in (("CIRCLE", TooLargeError), ("CANNOT_BE_SENT", InvalidArgumentError)):
        rref = rpc.remote(TO, s.a_global, args=(name,))
        with pytest.raises(error):
            rref.to_here()
        with pytest.raises(PsError):
            rpc.rpc_sync(TO, s.a_global, args=(name,))
        assert rpc.rpc_sync(TO, s.is_global, args=(rref, name))


def test_gradients_follow_the_tensors_of_a_list_that_was_reversed() -> None:
    x = torch.ones(2, requires_grad=True)
    with autograd.context() as context_id, ThreadPoolExecutor() as outside:
        found = rpc.remote(TO, s.twice_and_thrice, args=(x,))
        outside.submit(rpc.rpc_sync, TO, s.reverse, (found,)).result(20)
        loss = rpc.rpc_sync(TO, s.first_of, args=(found,))
        autograd.backward(context_id, [loss])
        assert loss.item() == 6
        assert autograd.get_gradients(context_id)[x].tolist() == [3, 3]
