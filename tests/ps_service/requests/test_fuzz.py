"""Requests that make no sense: each has an answer that says whose fault it is, and nothing on the owner changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.requests.execution import answer
from ps_service.requests.operations import OPERATIONS
from ps_wire.errors import InternalError
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.values_pb2 import Handle
from tests import hosted_models
from tests.ps_service.requests.asking import ANNA, Asker, parameter

TEXTS = ["", "net", "weight", "forward", "step", "echo", "cpu", "torch.nn.Linear", "torch.optim.SGD", "lr", "params"]
INTEGERS = [0, 1, 2, 3, 2**31 - 1]
SCALARS = {
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_DOUBLE: st.sampled_from([0.0, 1.0, -2.0, float("nan"), float("inf")]),
    FieldDescriptor.CPPTYPE_INT64: st.sampled_from([*INTEGERS, -1, 2**62, -(2**63)]),
    FieldDescriptor.CPPTYPE_UINT64: st.sampled_from([*INTEGERS, 2**62, 2**64 - 1]),
    FieldDescriptor.CPPTYPE_UINT32: st.sampled_from([*INTEGERS, 2**32 - 1]),
    FieldDescriptor.CPPTYPE_ENUM: st.integers(0, 48),
}
CONTEXTS = [pb.ContextId(), *(pb.ContextId(trainer=ANNA, number=number) for number in (0, 1, 2))]


class Owner:
    """An owner with something on it to be damaged; it is made anew whenever a request has changed it."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._fill()

    def request(self, operation: str, message: Message) -> tuple[Any, bool]:
        """The reply, and whether anything has changed."""
        result = self._runner.run(answer(self._engine, ANNA, OPERATIONS[operation], message, embed=True))
        changed = self._snapshot() != self._before
        if changed or len(self._engine.contexts) > 20:
            self._engine.close()
            self._fill()
        return result.reply, changed

    def close(self) -> None:
        self._engine.close()
        self._runner.close()

    def _fill(self) -> None:
        self._engine = Engine("ps0", AllowList([hosted_models]), threads=1)
        self._runner.run(self._make())
        self._before = self._snapshot()

    async def _make(self) -> None:
        ask = Asker(self._engine)
        net = await ask.linear()
        optimizer = await ask.optimizer(net)
        counter = (
            await ask("create", pb.CreateRequest(class_name="tests.hosted_models.Counter", name="counter"))
        ).object
        await ask.forward(net.handle, torch.ones(1, 2, requires_grad=True))
        stale, foreign = Handle(owner="ps0", object_id="0" * 32), Handle(owner="ps1", object_id=net.handle.object_id)
        here = [net.handle, parameter(net), parameter(net, "wait"), optimizer.handle, counter.handle]
        self.handles = [Handle(), stale, foreign, *here]

    def _snapshot(self) -> Any:
        state = []
        for each in self._engine.registry.objects():
            numbers = [parameter.tolist() for parameter in each.parameters.values()]
            version = getattr(each.value, "version", None)
            groups = [group["lr"] for group in each.value.optimizer.param_groups] if version is not None else None
            state.append((each.name, each.references, numbers, version, groups, getattr(each.value, "value", None)))
        return state


@pytest.fixture(scope="module")
def owner() -> Iterator[Owner]:
    owner = Owner()
    yield owner
    owner.close()


def requests(owner: Owner) -> st.SearchStrategy[tuple[str, Message]]:
    """An operation, and a message of its type."""
    return st.sampled_from(sorted(OPERATIONS)).flatmap(
        lambda name: st.tuples(st.just(name), messages(type(getattr(Request(), name)).DESCRIPTOR, owner, 4))
    )


def messages(kind: Descriptor, owner: Owner, depth: int) -> st.SearchStrategy[Any]:
    """Messages of a type, with any of their fields."""
    if kind.name == "Handle":
        return st.integers(0, 7).map(lambda number: owner.handles[number])
    if kind.name == "ContextId":
        return st.sampled_from(CONTEXTS)
    fields = {field.name: contents(field, owner, depth) for field in kind.fields if depth or field.message_type is None}
    return st.fixed_dictionaries({}, optional=fields).map(lambda chosen: built(kind, chosen))


def contents(field: FieldDescriptor, owner: Owner, depth: int) -> st.SearchStrategy[Any]:
    """What may stand in a field."""
    if field.name == "wait_seconds":
        one = st.sampled_from([0.0, -2.0, float("nan"), float("inf")])  # and nothing for which the test would wait
    elif field.message_type is not None:
        one = messages(field.message_type, owner, depth - 1)
    elif field.type == FieldDescriptor.TYPE_BYTES:
        one = st.sampled_from([b"", b"\x00" * 8, ANNA])
    elif field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        one = st.sampled_from(TEXTS)
    else:
        one = SCALARS[field.cpp_type]
    return st.lists(one, max_size=3) if field.is_repeated else one


def built(kind: Descriptor, fields: dict[str, Any]) -> Message:
    message = message_factory.GetMessageClass(kind)()
    for name, content in fields.items():
        field = kind.fields_by_name[name]
        if field.is_repeated and field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, name).update({each.key: each.value for each in content})
        elif field.is_repeated:
            getattr(message, name).extend(content)
        elif field.message_type is not None:
            getattr(message, name).CopyFrom(content)
        else:
            setattr(message, name, content)
    return message


@settings(max_examples=200)
@given(data=st.data())
def test_no_request_is_a_fault_of_the_owner_and_a_refused_one_changes_nothing(
    owner: Owner, data: st.DataObject
) -> None:
    name, request = data.draw(requests(owner))
    reply, changed = owner.request(name, request)
    assert reply.WhichOneof("outcome") in ("error", name)
    if reply.HasField("error"):
        assert reply.error.code != InternalError.code, f"{name}: {reply.error.message}"
        assert reply.error.message
        assert not changed
