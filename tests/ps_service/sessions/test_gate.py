"""Tests which requests an owner accepts while it stops."""

from __future__ import annotations

from typing import Any

import pytest

from ps_service.memory.held import HeldByAll
from ps_service.passes.contexts import Contexts
from ps_service.sessions.gate import Gate
from ps_wire.limits import Limits
from ps_wire.operations import OPERATIONS
from ps_wire.refs import ContextId
from ps_wire.v1 import operations_pb2 as pb

TRAINER, OTHER = b"a" * 16, b"b" * 16
PASS = ContextId(TRAINER, 1)


@pytest.fixture
def contexts() -> Contexts:
    """The contexts of an owner on which a pass of the trainer is open."""
    contexts = Contexts(HeldByAll(Limits()))
    contexts.open(PASS, TRAINER)
    return contexts


def gate(contexts: Contexts, state: Gate.State) -> Gate:
    gate = Gate(contexts)
    gate.state = state
    return gate


def call(context: ContextId | None = None) -> Any:
    return pb.CallRequest(context=context.to_message() if context is not None else None)


def test_an_open_gate_admits_everything(contexts: Contexts) -> None:
    for name, operation in OPERATIONS.items():
        assert Gate(contexts).admits(OTHER, operation, call()), name


def test_an_owner_that_drains_goes_on_with_passes_that_are_open(contexts: Contexts) -> None:
    draining = gate(contexts, Gate.State.DRAINING)
    assert draining.admits(TRAINER, OPERATIONS["call"], call(PASS))
    assert not draining.admits(TRAINER, OPERATIONS["call"], call(ContextId(TRAINER, 2)))
    assert draining.admits(OTHER, OPERATIONS["backward"], pb.BackwardRequest())


def test_an_owner_that_drains_begins_nothing_for_those_without_a_pass(contexts: Contexts) -> None:
    draining = gate(contexts, Gate.State.DRAINING)
    assert draining.admits(TRAINER, OPERATIONS["create"], pb.CreateRequest())
    assert not draining.admits(OTHER, OPERATIONS["create"], pb.CreateRequest())
    assert draining.admits(OTHER, OPERATIONS["status"], pb.StatusRequest())


def test_an_owner_that_drains_takes_up_nested_requests(contexts: Contexts) -> None:
    draining = gate(contexts, Gate.State.DRAINING)
    assert draining.admits(OTHER, OPERATIONS["call"], call(ContextId(OTHER, 1)), depth=1)


def test_an_owner_that_has_stopped_changes_nothing_and_hands_nothing_out(contexts: Contexts) -> None:
    for name, operation in OPERATIONS.items():
        admitted = gate(contexts, Gate.State.STOPPED).admits(TRAINER, operation, call(PASS), depth=1)
        assert admitted == (not operation.mutates and not operation.grants), name
