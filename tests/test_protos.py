"""Tests that messages, handlers, service and errors have the same operations and codes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FileDescriptor

from ps_service.engine import Engine
from ps_service.requests.operations import OPERATIONS
from ps_service.rpc.servicer import Servicer
from ps_service.rpc.unary_metadata import STATUS
from ps_wire import errors
from ps_wire.v1 import (
    checkpoint_pb2,
    directory_pb2,
    errors_pb2,
    frames_pb2,
    operations_pb2,
    owner_pb2,
    probes_pb2,
    values_pb2,
)
from ps_wire.v1.errors_pb2 import ErrorCode
from ps_wire.v1.frames_pb2 import Frame, Reply, Request
from ps_wire.v1.operations_pb2 import CallReply
from ps_wire.v1.values_pb2 import Tensor

PROTO = Path(__file__).parent.parent / "proto"
FILES: dict[str, FileDescriptor] = {
    module.DESCRIPTOR.name: module.DESCRIPTOR
    for module in (
        checkpoint_pb2,
        directory_pb2,
        errors_pb2,
        frames_pb2,
        operations_pb2,
        owner_pb2,
        probes_pb2,
        values_pb2,
    )
}
ASKED = {field.name: field for field in Request.DESCRIPTOR.oneofs_by_name["operation"].fields}
ANSWERED = {field.name: field for field in Reply.DESCRIPTOR.oneofs_by_name["outcome"].fields if field.name != "error"}
METHODS = {
    method.name: method for method in owner_pb2.DESCRIPTOR.services_by_name["Owner"].methods if method.name != "Session"
}


def method_of(operation: str) -> str:
    return "".join(word.capitalize() for word in operation.split("_"))


# Operations


def test_every_request_has_a_reply_of_the_same_name_and_number() -> None:
    assert {name: field.number for name, field in ASKED.items()} == {n: f.number for n, f in ANSWERED.items()}


def test_every_operation_has_a_handler() -> None:
    assert ASKED.keys() == OPERATIONS.keys()


def test_every_operation_is_a_unary_method_with_the_same_messages() -> None:
    assert {method_of(name) for name in ASKED} == METHODS.keys()
    for name, field in ASKED.items():
        method = METHODS[method_of(name)]
        assert method.input_type is field.message_type
        assert method.output_type is ANSWERED[name].message_type
        assert not method.client_streaming and not method.server_streaming


def test_a_session_is_a_stream_of_frames_in_both_directions() -> None:
    session = owner_pb2.DESCRIPTOR.services_by_name["Owner"].methods_by_name["Session"]
    assert session.input_type is session.output_type is Frame.DESCRIPTOR
    assert session.client_streaming and session.server_streaming


def test_the_servicer_serves_every_method() -> None:
    engine = Engine("ps0")
    handlers = Servicer(engine).handlers()
    for method in (*METHODS, "Session"):
        served = handlers.service(_Called(f"/ps_wire.v1.Owner/{method}"))
        assert served is not None
        assert served.request_streaming is served.response_streaming is (method == "Session")
    assert handlers.service(_Called("/ps_wire.v1.Owner/Pickle")) is None
    engine.close()


class _Called:
    def __init__(self, method: str) -> None:
        self.method = method


# Errors


def test_every_error_code_has_a_grpc_status() -> None:
    assert STATUS.keys() == set(ErrorCode.values()) - {ErrorCode.ERROR_UNSPECIFIED}


def test_every_error_code_has_one_exception() -> None:
    assert errors.BY_CODE.keys() == set(ErrorCode.values()) - {ErrorCode.ERROR_UNSPECIFIED}
    assert len(set(errors.BY_CODE.values())) == len(errors.BY_CODE)


def test_an_exception_is_named_as_its_code() -> None:
    special = {"CANCELLED": "CancelledCallError"}
    for code, cls in errors.BY_CODE.items():
        name = ErrorCode.Name(code).removeprefix("ERROR_")
        assert cls.__name__ == special.get(name, method_of(name.lower()) + "Error")


# The wire


@pytest.mark.parametrize(("message", "field"), [(Frame, "payload"), (Tensor, "data")], ids=["Frame", "Tensor"])
def test_bulk_bytes_stand_last(message: type, field: str) -> None:
    numbers = {each.name: each.number for each in message.DESCRIPTOR.fields}
    assert numbers[field] == max(numbers.values())


def test_a_reply_without_content_is_still_a_reply() -> None:
    reply = Reply()
    reply.call.SetInParent()
    assert Reply.FromString(reply.SerializeToString()) == Reply(call=CallReply())


# The checked-in code and the .proto files


def test_every_proto_file_has_its_code() -> None:
    assert {path.relative_to(PROTO).as_posix() for path in PROTO.rglob("*.proto")} == FILES.keys()


@pytest.mark.parametrize("name", FILES)
def test_the_code_is_of_this_proto_file(name: str) -> None:
    text = re.sub(r"//[^\n]*", "", (PROTO / name).read_text("utf-8"))
    assert f"package {FILES[name].package};" in text
    assert set(re.findall(r"^import \"(.*)\";", text, re.MULTILINE)) == {each.name for each in FILES[name].dependencies}
    written = {kind: _bodies(text, kind) for kind in ("message", "enum", "service")}
    messages, enums = FILES[name].message_types_by_name, FILES[name].enum_types_by_name
    assert written["message"].keys() == set(messages.keys())
    assert written["enum"].keys() == set(enums.keys())
    assert written["service"].keys() == set(FILES[name].services_by_name.keys())
    for message, body in written["message"].items():
        assert _fields_written(body) == _fields_of(messages[message])
    for enum, body in written["enum"].items():
        assert _values_written(body) == _values_of(enums[enum])
    for service, body in written["service"].items():
        found = set(re.findall(r"rpc (\w+)\((?:stream )?(\w+)\) returns \((?:stream )?(\w+)\);", body))
        methods = FILES[name].services_by_name[service].methods
        assert found == {(each.name, each.input_type.name, each.output_type.name) for each in methods}


def _bodies(text: str, kind: str) -> dict[str, str]:
    """What stands between the braces of every top-level definition; a oneof may stand inside."""
    pattern = rf"^{kind} (\w+) \{{((?:[^{{}}]|\{{[^{{}}]*\}})*)\}}"
    return {match[1]: match[2] for match in re.finditer(pattern, text, re.MULTILINE)}


def _fields_written(body: str) -> set[tuple[str, str, int]]:
    found = re.findall(r"(?:repeated |optional )?(\w+) (\w+) = (\d+);", body)
    maps = re.findall(r"map<\w+, \w+> (\w+) = (\d+);", body)
    # A map is a repeated message of its own, named after its field.
    entries = {(f"{method_of(field)}Entry", field, int(number)) for field, number in maps}
    return {(kind, field, int(number)) for kind, field, number in found} | entries


def _fields_of(message: Descriptor) -> set[tuple[str, str, int]]:
    kinds = {
        1: "double",
        3: "int64",
        4: "uint64",
        6: "fixed64",
        8: "bool",
        9: "string",
        12: "bytes",
        13: "uint32",
        18: "sint64",
    }
    return {
        ((each.message_type or each.enum_type).name if each.message_type or each.enum_type else kinds[each.type],
         each.name, each.number)
        for each in message.fields
    }  # fmt: skip


def _values_written(body: str) -> set[tuple[str, int]]:
    return {(value, int(number)) for value, number in re.findall(r"(\w+) = (\d+);", body)}


def _values_of(enum: EnumDescriptor) -> set[tuple[str, int]]:
    return {(value.name, value.number) for value in enum.values}
