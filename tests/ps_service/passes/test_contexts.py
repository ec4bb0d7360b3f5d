"""Tests that gradients of a pass accumulate, never mix with those of another, and are freed at its end."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from ps_service.group.peers import Membership, NestedPass, Over, Peers
from ps_service.hosting.leaves import Leaf
from ps_service.memory.held import Held
from ps_service.passes.contexts import Contexts
from ps_service.passes.gradients import Gradient
from ps_service.passes.pass_context import PassContext
from ps_service.passes.records import Record
from ps_wire.errors import ContextEndedError, ContextLostError
from ps_wire.refs import CallKey, ContextId, Ref
from tests.ps_service.threads import PATIENCE, Worker

TRAINER = b"t" * 16
OTHER = b"o" * 16
FIRST = ContextId(TRAINER, 1)
CALL = CallKey(TRAINER, 1)


def leaf_of(parameter: Parameter, name: str = "weight") -> Leaf:
    return Leaf(Ref("ps0", "0" * 32, name), parameter, parameter.data.requires_grad_(parameter.requires_grad))


def gradient_of(parameter: Parameter, tensor: torch.Tensor) -> Gradient:
    return Gradient(Ref("ps0", "0" * 32, "weight"), parameter, tensor)


@pytest.fixture
def weight() -> Parameter:
    return Parameter(torch.tensor([2.0, 3.0]))


@pytest.fixture
def context() -> PassContext:
    return PassContext(FIRST, Held())


# Gradients of one pass


def dense(*values: float) -> torch.Tensor:
    return torch.tensor(values)


def sparse(*values: float) -> torch.Tensor:
    return torch.sparse_coo_tensor([[0, 1]], list(values), (2,), check_invariants=True)


@pytest.mark.parametrize(
    "gradients",
    [
        (dense(1, 2), dense(10, 20), dense(100, 200)),
        (sparse(1, 2), sparse(10, 20), sparse(100, 200)),
        (sparse(1, 2), dense(10, 20), sparse(100, 200)),
        (dense(1, 2), sparse(10, 20), dense(100, 200)),
    ],
    ids=["dense", "sparse", "sparse first", "dense first"],
)
def test_gradients_add_up_and_no_other_tensor_is_written(
    context: PassContext, weight: Parameter, gradients: tuple[torch.Tensor, ...]
) -> None:
    before = [gradient.clone() for gradient in gradients]
    for gradient in gradients:
        context.accumulate([gradient_of(weight, gradient)])
    (total,) = context.gradients()
    assert total.tensor.to_dense().tolist() == [111.0, 222.0]
    assert all(torch.equal(a.to_dense(), b.to_dense()) for a, b in zip(gradients, before, strict=True))
    assert torch.equal(context.gradients_of([weight])[0].to_dense(), total.tensor.to_dense())


def test_one_tensor_may_be_the_gradient_of_two_parameters(context: PassContext, weight: Parameter) -> None:
    other, shared = Parameter(torch.zeros(2)), dense(1, 1)
    context.accumulate([gradient_of(weight, shared), gradient_of(other, shared)])
    for _ in range(2):
        context.accumulate([gradient_of(weight, dense(1, 1))])
    assert context.gradients_of([weight])[0].tolist() == [3.0, 3.0]
    assert context.gradients_of([other])[0].tolist() == [1.0, 1.0]


def test_scaling_touches_the_named_parameters_only(context: PassContext, weight: Parameter) -> None:
    other, shared, absent = Parameter(torch.zeros(2)), dense(1, 2), Parameter(torch.zeros(2))
    context.accumulate([gradient_of(weight, shared), gradient_of(other, shared)])
    context.scale([weight, absent], 0.5)
    context.accumulate([gradient_of(weight, dense(1, 1))])
    assert context.gradients_of([weight])[0].tolist() == [1.5, 2.0]
    assert context.gradients_of([other])[0].tolist() == [1.0, 2.0]
    assert context.gradients_of([absent])[0] is None
    assert shared.tolist() == [1.0, 2.0]


def test_contexts_do_not_share_gradients(weight: Parameter) -> None:
    contexts = Contexts()
    one, two = contexts.open(FIRST), contexts.open(ContextId(OTHER, 1))
    one.accumulate([gradient_of(weight, dense(1, 2))])
    assert two.gradients_of([weight]) == [None]
    assert two.gradients() == []


def test_gradients_from_many_threads_all_arrive(context: PassContext, weight: Parameter) -> None:
    barrier = threading.Barrier(4)

    def add() -> None:
        barrier.wait(PATIENCE)
        for _ in range(100):
            context.accumulate([gradient_of(weight, dense(1, 1))])

    for worker in [Worker(add) for _ in range(4)]:
        worker.result()
    assert context.gradients_of([weight])[0].tolist() == [400.0, 400.0]


# The life of a context


def test_a_context_is_opened_once() -> None:
    contexts = Contexts()
    assert contexts.get(FIRST) is None
    opened = contexts.open(FIRST)
    assert contexts.open(FIRST) is contexts.get(FIRST) is contexts.find(FIRST) is opened
    assert len(contexts) == 1


def test_threads_that_open_a_context_together_get_the_same() -> None:
    contexts, barrier = Contexts(), threading.Barrier(4)

    def open() -> PassContext:
        barrier.wait(PATIENCE)
        return contexts.open(FIRST)

    assert len({id(worker.result()) for worker in [Worker(open) for _ in range(4)]}) == 1


def test_a_context_that_is_not_here_is_lost() -> None:
    with pytest.raises(ContextLostError, match="run forward again"):
        Contexts().find(FIRST)


def test_a_call_that_is_not_here_is_lost(context: PassContext) -> None:
    with pytest.raises(ContextLostError, match="run forward again"):
        context.record(CALL)


USES: list[Callable[[Contexts], Any]] = [
    lambda contexts: contexts.open(FIRST),
    lambda contexts: contexts.get(FIRST),
    lambda contexts: contexts.find(FIRST),
]


@pytest.mark.parametrize("use", USES, ids=["open", "get", "find"])
@pytest.mark.parametrize("was_open", [True, False])
def test_a_context_that_ended_cannot_be_used_again(use: Callable[[Contexts], Any], was_open: bool) -> None:
    contexts = Contexts()
    if was_open:
        contexts.open(FIRST)
    contexts.end(FIRST)
    with pytest.raises(ContextEndedError, match="Open a new one"):
        use(contexts)
    assert contexts.get(ContextId(TRAINER, 2)) is None
    assert contexts.get(ContextId(OTHER, 1)) is None
    assert len(contexts) == 0


def test_ending_twice_is_the_same_as_once() -> None:
    contexts = Contexts()
    contexts.open(FIRST)
    contexts.end(FIRST)
    contexts.end(FIRST)
    assert len(contexts) == 0


class CalledOwners(Peers, NestedPass):
    """Stands for other owners that were called in a pass; keeps what they are told of its end."""

    def __init__(self) -> None:
        self.root = torch.empty(0)
        self.told: list[Over] = []

    def nested_pass(self, context: ContextId) -> CalledOwners:
        return self

    def calling(self, place: tuple[int, ...]) -> AbstractContextManager[None]:
        return nullcontext()

    def propagating(self, retain_graph: bool, backward: int) -> AbstractContextManager[None]:
        return nullcontext()

    def others(self) -> list[str]:
        return ["ps1"]

    def end(self, over: Over) -> None:
        self.told.append(over)


def test_an_end_also_ends_those_of_which_it_says_that_they_are_over(weight: Parameter) -> None:
    contexts, called, joined = Contexts(), CalledOwners(), Membership()
    joined.join(called)
    opened = {number: contexts.open(ContextId(TRAINER, number), b"owner".ljust(16)) for number in (1, 2, 3, 5)}
    theirs = contexts.open(ContextId(OTHER, 1), OTHER)
    for each in (*opened.values(), theirs):
        each.accumulate([gradient_of(weight, dense(1, 1))])
    with opened[1].calling(joined, ()):
        pass
    contexts.end(ContextId(TRAINER, 3), Over(4, (2,)))
    assert {each.id for each in contexts.all()} == {opened[2].id, opened[5].id, theirs.id}
    assert [number for number, each in opened.items() if each.gradients()] == [2, 5]
    assert called.told == [Over(4, [2])]
    with pytest.raises(ContextEndedError):
        contexts.open(FIRST)
    contexts.end(ContextId(TRAINER, 4), Over(10))
    assert contexts.all() == [theirs]
    assert not contexts.used_by({TRAINER, b"owner".ljust(16)})


def test_an_end_frees_the_state_of_the_pass(weight: Parameter) -> None:
    contexts = Contexts()
    context = contexts.open(FIRST)
    leaf = leaf_of(weight)
    context.add(CALL, Record([(leaf.tensor**2).sum()], None, 0, [leaf], [0]))
    context.accumulate([gradient_of(weight, dense(1, 1))])
    gone = weakref.ref(leaf.tensor)
    contexts.end(FIRST)
    del leaf
    assert gone() is None
    assert context.gradients() == []


def test_a_call_that_ends_after_its_context_is_not_kept(context: PassContext, weight: Parameter) -> None:
    context.end()
    with pytest.raises(ContextEndedError):
        context.add(CALL, Record([weight.data], None, 0, [], []))
    with pytest.raises(ContextEndedError):
        context.gradients_of([weight])


def test_a_trainer_that_is_gone_leaves_nothing_behind() -> None:
    contexts = Contexts()
    mine, gone = contexts.open(ContextId(OTHER, 1)), contexts.open(FIRST)
    contexts.end(ContextId(TRAINER, 2))
    contexts.forget(TRAINER)
    assert len(contexts) == 1
    assert contexts.find(ContextId(OTHER, 1)) is mine
    with pytest.raises(ContextEndedError):
        gone.add(CALL, Record([], None, 0, [], []))
    assert contexts.open(FIRST) is not gone
    assert contexts.get(ContextId(TRAINER, 2)) is None


@pytest.mark.parametrize("is_there", [True, False])
def test_a_pass_that_another_owner_has_lost_stays_lost_while_its_trainer_is_there(is_there: bool) -> None:
    """An owner that was called in the pass has started again, twice."""
    present = {OTHER} | ({TRAINER} if is_there else set())
    contexts = Contexts(has_session=present.__contains__)
    contexts.open(FIRST, OTHER)
    contexts.forget(OTHER)
    contexts.open(ContextId(TRAINER, 2), OTHER)
    contexts.end(ContextId(TRAINER, 2))
    contexts.forget(OTHER)
    if is_there:
        with pytest.raises(ContextEndedError):
            contexts.get(FIRST)
    else:
        assert contexts.get(FIRST) is None


def test_memory_does_not_grow_with_the_contexts_that_ended() -> None:
    contexts = Contexts()
    for number in range(1, 2001):
        contexts.open(ContextId(TRAINER, number))
        contexts.end(ContextId(TRAINER, number))
    assert repr(contexts._ended[TRAINER]) == "<SeenNumbers 1..2000 and 0 above>"
