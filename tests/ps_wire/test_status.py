"""Tests that the types of the status have the fields of the messages, and the values that JSON has."""

from __future__ import annotations

import dataclasses
import inspect
import json
import runpy

import pytest
from google.protobuf.descriptor import FieldDescriptor

from ps_wire.status import OwnerStatus, parts
from ps_wire.v1 import operations_pb2 as pb
from tests.forking.process import ROOT

TYPES = {
    OwnerStatus: pb.StatusReply,
    parts.TrainerStatus: pb.SessionInfo,
    parts.PassStatus: pb.ContextInfo,
    parts.ObjectStatus: pb.ObjectStatus,
    parts.OptimizerStatus: pb.OptimizerStatus,
    parts.LogStatus: pb.LogStatus,
    parts.TableStatus: pb.TableStatus,
    parts.OperationStatus: pb.OperationStatus,
    parts.CommunicatorStatus: pb.CommunicatorStatus,
    parts.MemoryStatus: pb.MemoryStatus,
    parts.QuotaStatus: pb.QuotaStatus,
    parts.MemberStatus: pb.Member,
    parts.EventStatus: pb.Event,
}


def test_every_type_of_the_module_is_here() -> None:
    found = {each for each in vars(parts).values() if inspect.isclass(each) and dataclasses.is_dataclass(each)}
    assert {OwnerStatus, *found} == set(TYPES)


@pytest.mark.parametrize("kind", TYPES)
def test_the_fields_are_those_of_the_message(kind: type) -> None:
    fields = {each.name for each in dataclasses.fields(kind)}
    assert fields == {each.name for each in TYPES[kind].DESCRIPTOR.fields}


@pytest.mark.parametrize("kind", TYPES)
def test_every_field_is_explained(kind: type) -> None:
    explained = runpy.run_path(str(ROOT / "docs" / "status.py"))["explained"](kind)
    assert list(explained) == [each.name for each in dataclasses.fields(kind)]


def test_an_empty_message_can_be_read() -> None:
    read = OwnerStatus.from_message(pb.StatusReply())
    assert (read.owner, read.objects, read.kinds, read.uptime_seconds) == ("", (), {}, 0.0)


def test_a_full_message_keeps_its_types() -> None:
    message = pb.StatusReply(owner="ps0", parameters=3, calls_per_second=1.5, kinds={"module": 2})
    message.optimizers.add(name="a", lr=[0.1, 0.2], staleness_p50=0)
    message.optimizers.add(name="b")
    message.memory.add(kind="contexts", bytes=1, budget_bytes=2, largest_bytes=1)
    message.trainers.add(id="0a", program="train.py", process_id=7, request_bytes=1, answer_bytes=2)
    read = OwnerStatus.from_message(message)
    first, second = read.optimizers
    assert (first.lr, first.staleness_p50, first.staleness_p99, second.staleness_p50) == ((0.1, 0.2), 0, None, None)
    assert (read.memory[0].largest_bytes, read.kinds) == (1, {"module": 2})
    assert (read.trainers[0].name, read.trainers[0].held_bytes) == ("train.py[7]", 3)
    plain = json.loads(json.dumps(read.as_plain()))
    assert (plain["parameters"], plain["calls_per_second"], plain["optimizers"][1]["staleness_p99"]) == (3, 1.5, None)
    assert isinstance(plain["parameters"], int)


def test_the_types_of_numbers_are_those_of_the_messages() -> None:
    whole = {FieldDescriptor.CPPTYPE_UINT64, FieldDescriptor.CPPTYPE_UINT32}
    for kind, message in TYPES.items():
        for field in dataclasses.fields(kind):
            described = message.DESCRIPTOR.fields_by_name[field.name]
            if described.cpp_type in whole:
                assert field.type in ("int", "int | None"), field
            if described.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
                assert field.type in ("float", "float | None", "tuple[float, ...]"), field


def test_a_notebook_shows_tables_in_which_names_are_no_markup() -> None:
    message = pb.StatusReply(owner="<b>ps0", state="serving", sessions=30, connected_sessions=29, objects_hosted=1)
    message.objects.add(name="<script>alert(1)</script>", class_name="my.Net", parameters=1234)
    for number in range(30):
        message.trainers.add(member=f"worker{number}", steps=number, connected=number > 0)
    read = OwnerStatus.from_message(message)
    shown = read._repr_html_()
    assert "<script>" not in shown and "&lt;script&gt;alert(1)&lt;/script&gt;" in shown and "&lt;b&gt;ps0" in shown
    assert "<td>1,234</td>" in shown and "<td>worker19</td>" in shown and "<td>worker20</td>" not in shown
    assert "and 10 more" in shown and "away 0 s" in shown and "Optimizers" not in shown
    assert repr(read) == "<OwnerStatus of '<b>ps0': serving, 29 of 30 sessions connected, 1 objects, 0 steps/s>"
