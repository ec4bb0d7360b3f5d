"""Tests the registry: a name has one object, handles are counted, and objects without handles are freed."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from ps_service.hosting.fingerprints import Fingerprint
from ps_service.hosting.objects import HostedObject
from ps_service.hosting.references import RRef
from ps_service.hosting.registry import Registry
from ps_service.metrics.object_counts import ObjectCounts
from ps_service.parameters.locks import ParameterLocks
from ps_wire.errors import (
    ForeignHandleError,
    InvalidArgumentError,
    NameConflictError,
    NotAllowedError,
    StaleHandleError,
    UnknownMethodError,
    UnknownNameError,
)
from ps_wire.refs import Ref
from tests.hosted_models import Affine, Counter
from tests.ps_service.threads import PATIENCE, Worker

ANNA, BERT = b"a" * 16, b"b" * 16


class Shelf:
    """A registry, and a short way to make things in it."""

    def __init__(self) -> None:
        self.registry = Registry("ps0", ObjectCounts())
        self.parameter_locks = ParameterLocks()

    def object(self, name: str = "", fingerprint: bytes = b"", value: Any = None) -> HostedObject:
        return HostedObject(
            "ps0", Counter() if value is None else value, self.parameter_locks, name, Fingerprint(fingerprint)
        )

    def make(self, name: str = "", fingerprint: bytes = b"") -> HostedObject:
        made, _ = self.registry.get_or_make(name, Fingerprint(fingerprint), lambda: self.object(name, fingerprint))
        return made

    def holds(self, hosted: HostedObject) -> bool:
        return hosted in self.registry.objects()


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


# Names


def test_a_name_is_made_once(shelf: Shelf) -> None:
    first, made = shelf.registry.get_or_make("net", Fingerprint(b"1"), lambda: shelf.object("net", b"1"))
    again, made_again = shelf.registry.get_or_make("net", Fingerprint(b"1"), lambda: pytest.fail("made twice"))
    assert (made, made_again) == (True, False)
    assert first is again is shelf.registry.named("net")


def test_without_a_name_it_is_always_a_new_one(shelf: Shelf) -> None:
    assert shelf.make() is not shelf.make()
    assert len(shelf.registry) == 2


def test_a_name_that_was_made_from_something_else_is_a_conflict(shelf: Shelf) -> None:
    known = shelf.make("net", b"1")
    with pytest.raises(NameConflictError, match=r"'net' exists already.*another name with name="):
        shelf.make("net", b"2")
    assert shelf.registry.objects() == [known]


def test_an_unknown_name_is_named_in_the_error(shelf: Shelf) -> None:
    with pytest.raises(UnknownNameError, match="owner 'ps0' hosts nothing under the name 'unknown'"):
        shelf.registry.named("unknown")


def test_many_that_ask_at_once_get_the_same(shelf: Shelf) -> None:
    threads, names = 4, 30
    barrier = threading.Barrier(threads)
    made: list[str] = []

    def ask() -> list[HostedObject]:
        found = []
        for number in range(names):
            name = f"net{number}"

            def make(name: str = name) -> HostedObject:
                made.append(name)
                return shelf.object(name, b"1", nn.Linear(20, 20))

            barrier.wait(PATIENCE)
            found.append(shelf.registry.get_or_make(name, Fingerprint(b"1"), make)[0])
        return found

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        results = [worker.result() for worker in [Worker(ask) for _ in range(threads)]]
    finally:
        sys.setswitchinterval(before)
    assert sorted(made) == sorted(f"net{number}" for number in range(names))
    assert all(result == results[0] for result in results)


def test_other_names_do_not_wait_while_something_is_made(shelf: Shelf) -> None:
    def make() -> HostedObject:
        assert Worker(lambda: shelf.make("other")).result().name == "other"
        return shelf.object("net")

    shelf.registry.get_or_make("net", Fingerprint(), make)
    assert len(shelf.registry) == 2


def test_a_constructor_that_raises_leaves_the_name_free(shelf: Shelf) -> None:
    def fails() -> HostedObject:
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            shelf.registry.get_or_make("net", Fingerprint(b"1"), fails)
    assert len(shelf.registry) == 0
    assert shelf.make("net", b"2").name == "net"


# Handles


def test_a_handle_leads_to_its_object(shelf: Shelf) -> None:
    made = shelf.registry.add(shelf.object(value=Affine(2, 3)))
    assert shelf.registry.find(made.ref) is made
    assert shelf.registry.find(made.ref._replace(parameter="weight")) is made


def test_a_handle_of_another_owner_is_foreign(shelf: Shelf) -> None:
    made = shelf.make()
    with pytest.raises(ForeignHandleError, match="belongs to owner 'ps1'; this is 'ps0'"):
        shelf.registry.find(made.ref._replace(owner="ps1"))


def test_a_handle_of_something_that_is_gone_is_stale(shelf: Shelf) -> None:
    with pytest.raises(StaleHandleError, match="Ask for it again as at the beginning"):
        shelf.registry.find(Ref("ps0", "f" * 32))


def test_a_handle_of_a_parameter_that_is_not_there_says_which_there_are(shelf: Shelf) -> None:
    made = shelf.registry.add(shelf.object(value=Affine(2, 3)))
    with pytest.raises(UnknownNameError, match="no parameter 'wait'; it has weight, bias"):
        shelf.registry.find(made.ref._replace(parameter="wait"))


# References


def test_an_anonymous_object_goes_with_its_last_handle(shelf: Shelf) -> None:
    made = shelf.make()
    shelf.registry.grant(ANNA, made)
    shelf.registry.grant(ANNA, made)
    shelf.registry.grant(BERT, made)
    shelf.registry.revoke(ANNA, [made.ref.object_id] * 2)
    assert shelf.holds(made)
    assert made.references == 1
    shelf.registry.revoke(BERT, [made.ref.object_id])
    assert not shelf.holds(made)
    with pytest.raises(StaleHandleError):
        shelf.registry.find(made.ref)


def test_a_named_object_stays(shelf: Shelf) -> None:
    made = shelf.make("net")
    shelf.registry.grant(ANNA, made)
    shelf.registry.revoke(ANNA, [made.ref.object_id])
    assert shelf.registry.named("net") is made
    assert made.references == 0


def test_a_session_cannot_release_references_of_others(shelf: Shelf) -> None:
    made = shelf.make()
    shelf.registry.grant(ANNA, made)
    shelf.registry.revoke(BERT, [made.ref.object_id] * 3)
    shelf.registry.grant(BERT, made)
    shelf.registry.revoke(BERT, [made.ref.object_id] * 3)
    shelf.registry.revoke(BERT, ["never heard of it"])
    assert shelf.holds(made)
    assert made.references == 1


def test_a_trainer_that_is_gone_holds_nothing(shelf: Shelf) -> None:
    only_anna, both, named = shelf.make(), shelf.make(), shelf.make("net")
    for made in (only_anna, both, both, named):
        shelf.registry.grant(ANNA, made)
    shelf.registry.grant(BERT, both)
    shelf.registry.forget(ANNA)
    shelf.registry.forget(ANNA)
    assert shelf.registry.objects() == [both, named]
    assert (both.references, named.references) == (1, 0)


def test_nothing_is_kept_of_trainers_that_hold_nothing(shelf: Shelf) -> None:
    made = shelf.make("net")
    for number in range(100):
        trainer = number.to_bytes(16)
        shelf.registry.grant(trainer, made)
        if number % 2:
            shelf.registry.forget(trainer)
        else:
            shelf.registry.revoke(trainer, [made.ref.object_id])
    assert not shelf.registry._holders


def test_references_from_many_threads_are_all_counted(shelf: Shelf) -> None:
    made = shelf.make()
    shelf.registry.grant(ANNA, made)

    def come_and_go(trainer: bytes) -> None:
        for _ in range(200):
            shelf.registry.grant(trainer, made)
            shelf.registry.revoke(trainer, [made.ref.object_id])

    for worker in [Worker(lambda: come_and_go(BERT)) for _ in range(4)]:
        worker.result()
    assert made.references == 1


# Deleting


def test_a_deleted_object_is_gone_also_for_its_holders(shelf: Shelf) -> None:
    made = shelf.make("net", b"1")
    shelf.registry.grant(ANNA, made)
    assert shelf.registry.delete("net") is made
    with pytest.raises(StaleHandleError):
        shelf.registry.find(made.ref)
    with pytest.raises(UnknownNameError):
        shelf.registry.delete("net")
    again = shelf.make("net", b"2")
    shelf.registry.revoke(ANNA, [made.ref.object_id])
    assert shelf.registry.named("net") is again


def test_dependents_of_a_deleted_object_are_removed(shelf: Shelf) -> None:
    net, optimizer, scheduler, other = (shelf.make(name) for name in ("net", "optimizer", "scheduler", "other"))
    shelf.registry.bind(optimizer, to=[net, other])
    shelf.registry.bind(scheduler, to=[optimizer])
    shelf.registry.delete("net")
    assert shelf.registry.objects() == [other]
    shelf.registry.delete("other")
    assert len(shelf.registry) == 0


def test_an_object_does_not_keep_its_dependents_alive(shelf: Shelf) -> None:
    net, optimizer = shelf.make("net"), shelf.make()
    shelf.registry.bind(optimizer, to=[net])
    shelf.registry.grant(ANNA, optimizer)
    gone = weakref.ref(optimizer)
    shelf.registry.forget(ANNA)
    del optimizer
    gc.collect()
    assert gone() is None


# Hosted objects


def test_the_mode_of_a_module_can_be_set_without_a_mark(shelf: Shelf) -> None:
    net = Affine(2, 3)
    hosted = shelf.object("net", value=net)
    hosted.method("eval").function(net)
    assert not net.training and "eval" in hosted.readers
    hosted.method("train").function(net)
    assert net.training
    with pytest.raises(ValueError, match="expected to be boolean"):
        hosted.method("train").function(net, "yes")


def test_only_marked_methods_and_forward_can_be_called(shelf: Shelf) -> None:
    hosted = shelf.object("net", value=Affine(2, 3))
    assert hosted.methods() == ["forward", "both", "called"]
    assert hosted.method("both").function is Affine.both
    assert hosted.method("forward").function is Affine.forward
    for name in ("private", "__init__", "parameters", "zero_grad", "_call_impl"):
        with pytest.raises(NotAllowedError, match=r"may not be called remotely.*forward, both, called"):
            hosted.method(name)
    for name in ("nothing", "weight", "__dict__", "__doc__"):
        with pytest.raises(
            UnknownMethodError, match=r"no attribute .* that can be called; trainers may call forward, both, called"
        ):
            hosted.method(name)


def test_an_optimizer_of_torch_steps_and_sets_gradients_to_zero(shelf: Shelf) -> None:
    class Own(torch.optim.SGD):
        """Its methods have to be marked."""

    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    hosted = shelf.object("optimizer", value=optimizer)
    assert hosted.methods() == ["step", "zero_grad"]
    weight.grad = torch.ones(2)
    hosted.method("step").function(optimizer)
    hosted.method("zero_grad").function(optimizer)
    assert weight.tolist() == [-0.5, -0.5] and weight.grad is None
    for name in ("add_param_group", "load_state_dict", "register_step_post_hook"):
        with pytest.raises(NotAllowedError, match="or call step, zero_grad"):
            hosted.method(name)
    own = shelf.object("own", value=Own([weight], lr=0.5))
    with pytest.raises(NotAllowedError, match="or call none"):
        own.method("step")


def test_forward_is_special_for_modules_only(shelf: Shelf) -> None:
    class Plain:
        def forward(self) -> None: ...

    with pytest.raises(NotAllowedError):
        shelf.object(value=Plain()).method("forward")


def test_attributes_of_an_instance_are_never_called(shelf: Shelf) -> None:
    value = Counter()
    value.sneaky = lambda: pytest.fail("called")
    with pytest.raises(UnknownMethodError):
        shelf.object(value=value).method("sneaky")


def test_a_module_offers_its_parameters(shelf: Shelf) -> None:
    hosted = shelf.object(value=nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False)))
    assert list(hosted.parameters) == ["0.weight", "0.bias", "1.weight"]
    assert hosted.parameter_state("0.bias") is shelf.parameter_locks.state(hosted.parameter("0.bias"))
    parameter = nn.Parameter(torch.ones(1))
    assert list(shelf.object(value=parameter).parameters) == [""]


def test_the_text_of_an_object_describes_it(shelf: Shelf) -> None:
    assert str(shelf.object("net")) == "tests.hosted_models.Counter 'net'"
    assert str(shelf.object()) == "an anonymous tests.hosted_models.Counter"
    assert "7, …" in _message(lambda: shelf.object(value=nn.ParameterList([torch.ones(1)] * 9)).parameter("x"))


def test_a_value_is_adopted_once(shelf: Shelf) -> None:
    rref = RRef(Counter())
    assert rref.hosted is None
    rref.adopt(shelf.make())
    with pytest.raises(InvalidArgumentError, match="hosted already"):
        rref.adopt(shelf.make())


def _message(call: Any) -> str:
    with pytest.raises(UnknownNameError) as caught:
        call()
    return str(caught.value)
