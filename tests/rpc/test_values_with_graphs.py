"""Values that came into a pass with a graph of their own: all calls of the pass go through it, as in local torch."""

from __future__ import annotations

import pytest
import torch

from tests.rpc import leaves as s
from trainer_client import autograd, rpc

ME, OTHER = "worker0", "worker1"

X = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])

SECOND = "backward through the graph a second time"


@pytest.fixture(autouse=True)
def first_values() -> None:
    for member in (ME, OTHER):
        rpc.rpc_sync(member, s.set_back)


def kept() -> rpc.RRef:
    """A value of this member that leads to its leaf."""
    return rpc.RRef(torch.tanh(s.shared * X))


def gradient(times: float) -> torch.Tensor:
    """The gradient of the leaf for so many times the sum of the value."""
    local = s.START.clone().requires_grad_()
    (torch.tanh(local * X).sum() * times).backward()
    assert local.grad is not None
    return local.grad


def use(value: rpc.RRef, x: float = 1.0) -> torch.Tensor:
    """The value in a call to this member."""
    result: torch.Tensor = rpc.rpc_sync(ME, s.times, args=(value, torch.tensor(x)))
    return result


def has_been_freed(value: rpc.RRef) -> bool:
    """Whether torch has freed what the graph of a value had saved."""
    try:
        torch.autograd.grad(value.local_value().sum(), s.shared, retain_graph=True)
    except RuntimeError as error:
        assert SECOND in str(error)
        return True
    return False


def test_several_calls_of_a_pass_go_through_the_graph_of_a_value() -> None:
    local = s.START.clone().requires_grad_()
    value = torch.tanh(local * X)
    ((value * 2).sum() + (value * X).sum() + (value * X * X).sum()).backward()
    own = kept()
    with autograd.context() as context_id:
        fetched = rpc.rpc_sync(OTHER, s.twice_of, args=(own,)).sum()
        times = rpc.rpc_sync(ME, s.times, args=(own, X)).sum()
        back = rpc.rpc_sync(OTHER, s.times_there, args=(ME, own, X * X)).sum() / 2
        autograd.backward(context_id, [fetched + times + back])
        torch.testing.assert_close(autograd.get_gradients(context_id)[s.shared], local.grad)
    assert has_been_freed(own)


@pytest.mark.parametrize("owner", [OTHER, "worker2"])
def test_a_value_of_another_member_is_fetched_twice_in_a_pass(owner: str) -> None:
    local = s.START.clone().requires_grad_()
    (local * local * 3).sum().backward()
    rpc.rpc_sync(owner, s.set_back)
    squares = rpc.remote(owner, s.squares)
    with autograd.context() as context_id:
        autograd.backward(context_id, [squares.to_here().sum() + (squares.to_here() * 2).sum()])
        torch.testing.assert_close(rpc.rpc_sync(owner, s.gradient_of_shared, args=(context_id,)), local.grad)
    with autograd.context() as context_id:
        product = squares.to_here()
        with pytest.raises(RuntimeError, match=SECOND):
            autograd.backward(context_id, [product.sum()])


def test_two_backwards_of_a_pass_go_through_the_graph_for_different_calls() -> None:
    own = kept()
    with autograd.context() as context_id:
        first, second = use(own), use(own, 2.0)
        autograd.backward(context_id, [first.sum()])
        assert not has_been_freed(own)
        autograd.backward(context_id, [second.sum()])
        torch.testing.assert_close(autograd.get_gradients(context_id)[s.shared], gradient(3.0))
    assert has_been_freed(own)


def test_a_second_backward_of_one_of_the_calls_is_refused() -> None:
    own = kept()
    with autograd.context() as context_id:
        first, second = use(own), use(own, 2.0)
        autograd.backward(context_id, [first.sum()])
        with pytest.raises(RuntimeError, match=SECOND):
            autograd.backward(context_id, [first.sum()])
        autograd.backward(context_id, [second.sum()])
        torch.testing.assert_close(autograd.get_gradients(context_id)[s.shared], gradient(3.0))


def test_another_pass_is_refused() -> None:
    own = kept()
    with autograd.context() as context_id:
        autograd.backward(context_id, [use(own).sum() + use(own).sum()])
    with autograd.context() as context_id:
        later = use(own).sum() + use(own).sum()
        with pytest.raises(RuntimeError, match=SECOND):
            autograd.backward(context_id, [later])
        assert autograd.get_gradients(context_id) == {}


def test_a_graph_that_has_saved_nothing_is_gone_through_in_every_pass() -> None:
    own = rpc.RRef(s.shared[0])
    for _ in range(2):
        with autograd.context() as context_id:
            autograd.backward(context_id, [use(own).sum() + use(own, 2.0).sum()])
            expected = torch.tensor([[3.0], [0.0]]).expand(2, 3)
            torch.testing.assert_close(autograd.get_gradients(context_id)[s.shared], expected)


def test_another_pass_goes_through_the_graph_if_the_first_has_retained_it() -> None:
    own = kept()
    for times in (1.0, 2.0):
        with autograd.context() as context_id:
            found = use(own, times).sum() + use(own, times).sum()
            for _ in range(2):
                autograd.backward(context_id, [found], retain_graph=True)
            torch.testing.assert_close(autograd.get_gradients(context_id)[s.shared], gradient(4 * times))


def test_a_call_that_computes_no_gradient_keeps_no_graph() -> None:
    own = kept()
    with autograd.context() as context_id:
        first = use(own)
        assert rpc.rpc_sync(ME, s.gradient_of, args=(context_id, own)) is None
        autograd.backward(context_id, [first.sum()])
        assert has_been_freed(own)


def test_values_in_a_container_of_which_each_call_uses_others() -> None:
    local = s.START.clone().requires_grad_()
    (torch.tanh(local) * 3 + torch.exp(local) * 4).sum().backward()
    both = rpc.RRef([torch.tanh(s.shared), torch.exp(s.shared)])
    with autograd.context() as context_id:
        products = [rpc.rpc_sync(ME, s.times_part, args=(both, part, n)) for part, n in ((0, 3.0), (1, 1.0), (1, 3.0))]
        autograd.backward(context_id, [sum(each.sum() for each in products)])
        torch.testing.assert_close(autograd.get_gradients(context_id)[s.shared], local.grad)


def test_a_call_without_a_backward_does_not_keep_the_graph_for_later_passes() -> None:
    own = kept()
    with autograd.context():
        use(own)
    with autograd.context() as context_id:
        autograd.backward(context_id, [use(own).sum()])
        assert has_been_freed(own)
