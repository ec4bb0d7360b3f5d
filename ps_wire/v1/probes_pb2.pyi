from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Probe(_message.Message):
    __slots__ = ("profile", "traceparent", "tracestate")
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    profile: bool
    traceparent: str
    tracestate: str
    def __init__(self, profile: bool = ..., traceparent: _Optional[str] = ..., tracestate: _Optional[str] = ...) -> None: ...

class Shape(_message.Message):
    __slots__ = ("sizes",)
    SIZES_FIELD_NUMBER: _ClassVar[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class ProfiledEvent(_message.Message):
    __slots__ = ("name", "start_ns", "duration_ns", "thread", "memory_bytes", "shapes", "node", "asynchronous")
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHAPES_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ASYNCHRONOUS_FIELD_NUMBER: _ClassVar[int]
    name: str
    start_ns: int
    duration_ns: int
    thread: int
    memory_bytes: int
    shapes: _containers.RepeatedCompositeFieldContainer[Shape]
    node: int
    asynchronous: bool
    def __init__(self, name: _Optional[str] = ..., start_ns: _Optional[int] = ..., duration_ns: _Optional[int] = ..., thread: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., shapes: _Optional[_Iterable[_Union[Shape, _Mapping]]] = ..., node: _Optional[int] = ..., asynchronous: bool = ...) -> None: ...

class Profile(_message.Message):
    __slots__ = ("began_ns", "duration_ns", "events", "left_out")
    BEGAN_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    began_ns: int
    duration_ns: int
    events: _containers.RepeatedCompositeFieldContainer[ProfiledEvent]
    left_out: int
    def __init__(self, began_ns: _Optional[int] = ..., duration_ns: _Optional[int] = ..., events: _Optional[_Iterable[_Union[ProfiledEvent, _Mapping]]] = ..., left_out: _Optional[int] = ...) -> None: ...
