"""Methods of values of members, called through references, under the names of torch's own suite."""

from __future__ import annotations

import pytest
import torch

from ps_wire.errors import DeadlineExceededError, NotAllowedError, UnknownMethodError
from tests.rpc import situations as s
from tests.rpc.passes import TO
from trainer_client import rpc


def test_call_method_on_rref() -> None:
    rref = rpc.remote(TO, s.Keeper, args=(5,))
    assert rref.rpc_sync().add(2) == 7
    assert rref.rpc_async().add(2).wait() == 9
    assert rref.remote().add(2).to_here() == 11
    assert rpc.rpc_sync(rref.owner(), s.call_method, args=(rref, "value")) == 11
    assert rpc.rpc_sync(rref.owner(), s.call_on_module, args=(s.Keeper.add, rref, 1)) == 12


def test_rref_proxy_non_exist() -> None:
    rref = rpc.remote(TO, s.Keeper)
    for proxy in (rref.rpc_sync(), rref.remote()):
        with pytest.raises(
            UnknownMethodError, match="has no attribute 'nowhere' that can be called; trainers may call"
        ):
            result = proxy.nowhere()
            result.to_here()


def proxy_of_a_tensor(to: str) -> None:
    rref = rpc.remote(to, torch.ones, args=((2, 3),))
    assert rref.rpc_sync().size() == (2, 3)
    assert torch.equal(rref.rpc_async().view(3, 2).wait(), torch.ones(3, 2))
    assert torch.equal(rref.remote().add(1).to_here(), torch.full((2, 3), 2.0))
    with pytest.raises(NotAllowedError):
        rref.rpc_sync().share_memory_()


def test_rref_proxy_tensor() -> None:
    proxy_of_a_tensor(TO)


def test_rref_proxy_tensor_self() -> None:
    proxy_of_a_tensor("worker0")


def test_rref_proxy_reuse() -> None:
    rref = rpc.remote(TO, s.Keeper, args=(1,))
    once, later, away = rref.rpc_sync(), rref.rpc_async(), rref.remote()
    assert [once.add(1), once.value(), later.add(1).wait(), later.value().wait()] == [2, 2, 3, 3]
    assert [away.add(1).to_here(), away.value().to_here()] == [4, 4]


def proxy_of_an_object(to: str) -> None:
    rref = rpc.remote(to, s.Keeper, args=(7,))
    here = s.Keeper(7)
    assert rref.rpc_sync().value() == here.value()
    assert rref.rpc_async().add(3).wait() == here.add(3)
    assert rref.remote().static(1).to_here() == here.static(1)
    assert rref.rpc_sync().by_class(2) == here.by_class(2)
    with pytest.raises(RuntimeError, match="a method that fails"):
        rref.rpc_sync().fail()


def test_rref_proxy_class() -> None:
    proxy_of_an_object(TO)


def test_rref_proxy_class_self() -> None:
    proxy_of_an_object("worker0")


def test_rref_proxy_timeout() -> None:
    rref = rpc.remote(TO, s.Keeper, args=(1,))
    rref.to_here  # noqa: B018
    slow = rpc.remote(TO, s.wait_for, args=("proxy_timeout",))
    with pytest.raises(DeadlineExceededError):
        slow._get_future().wait(0.05)
    rpc.rpc_sync(TO, s.let_go, args=("proxy_timeout",))
    assert slow.to_here() is True and rref.rpc_sync(timeout=20).value() == 1


def test_rref_type_with_error_blocking() -> None:
    with pytest.raises(ValueError):
        rpc.remote(TO, s.raises).rpc_sync().anything()


def test_rref_type_with_error_non_blocking() -> None:
    with pytest.raises(ValueError):
        rpc.remote(TO, s.raises)._get_future().wait()
