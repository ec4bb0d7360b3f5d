from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_UNSPECIFIED: _ClassVar[ErrorCode]
    ERROR_INVALID_ARGUMENT: _ClassVar[ErrorCode]
    ERROR_UNKNOWN_NAME: _ClassVar[ErrorCode]
    ERROR_NOT_ALLOWED: _ClassVar[ErrorCode]
    ERROR_NAME_CONFLICT: _ClassVar[ErrorCode]
    ERROR_STALE_HANDLE: _ClassVar[ErrorCode]
    ERROR_FOREIGN_HANDLE: _ClassVar[ErrorCode]
    ERROR_CONTEXT_ENDED: _ClassVar[ErrorCode]
    ERROR_CONTEXT_LOST: _ClassVar[ErrorCode]
    ERROR_REMOTE: _ClassVar[ErrorCode]
    ERROR_NON_FINITE_GRADIENT: _ClassVar[ErrorCode]
    ERROR_TOO_LARGE: _ClassVar[ErrorCode]
    ERROR_DEADLINE_EXCEEDED: _ClassVar[ErrorCode]
    ERROR_CANCELLED: _ClassVar[ErrorCode]
    ERROR_OVERLOADED: _ClassVar[ErrorCode]
    ERROR_UNAVAILABLE: _ClassVar[ErrorCode]
    ERROR_SESSION_LOST: _ClassVar[ErrorCode]
    ERROR_INTERNAL: _ClassVar[ErrorCode]
    ERROR_UNKNOWN_METHOD: _ClassVar[ErrorCode]
    ERROR_DRAINING: _ClassVar[ErrorCode]
    ERROR_STORAGE: _ClassVar[ErrorCode]
    ERROR_REPLACED: _ClassVar[ErrorCode]
    ERROR_ROWS_MOVED: _ClassVar[ErrorCode]
    ERROR_UNAUTHENTICATED: _ClassVar[ErrorCode]
    ERROR_PERMISSION_DENIED: _ClassVar[ErrorCode]
    ERROR_OBJECT_MOVED: _ClassVar[ErrorCode]
    ERROR_QUOTA: _ClassVar[ErrorCode]
ERROR_UNSPECIFIED: ErrorCode
ERROR_INVALID_ARGUMENT: ErrorCode
ERROR_UNKNOWN_NAME: ErrorCode
ERROR_NOT_ALLOWED: ErrorCode
ERROR_NAME_CONFLICT: ErrorCode
ERROR_STALE_HANDLE: ErrorCode
ERROR_FOREIGN_HANDLE: ErrorCode
ERROR_CONTEXT_ENDED: ErrorCode
ERROR_CONTEXT_LOST: ErrorCode
ERROR_REMOTE: ErrorCode
ERROR_NON_FINITE_GRADIENT: ErrorCode
ERROR_TOO_LARGE: ErrorCode
ERROR_DEADLINE_EXCEEDED: ErrorCode
ERROR_CANCELLED: ErrorCode
ERROR_OVERLOADED: ErrorCode
ERROR_UNAVAILABLE: ErrorCode
ERROR_SESSION_LOST: ErrorCode
ERROR_INTERNAL: ErrorCode
ERROR_UNKNOWN_METHOD: ErrorCode
ERROR_DRAINING: ErrorCode
ERROR_STORAGE: ErrorCode
ERROR_REPLACED: ErrorCode
ERROR_ROWS_MOVED: ErrorCode
ERROR_UNAUTHENTICATED: ErrorCode
ERROR_PERMISSION_DENIED: ErrorCode
ERROR_OBJECT_MOVED: ErrorCode
ERROR_QUOTA: ErrorCode

class Moved(_message.Message):
    __slots__ = ("owner", "move", "object_id")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    owner: str
    move: str
    object_id: str
    def __init__(self, owner: _Optional[str] = ..., move: _Optional[str] = ..., object_id: _Optional[str] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message", "remote_type", "traceback", "drained", "moved")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REMOTE_TYPE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    message: str
    remote_type: str
    traceback: str
    drained: bool
    moved: Moved
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., message: _Optional[str] = ..., remote_type: _Optional[str] = ..., traceback: _Optional[str] = ..., drained: bool = ..., moved: _Optional[_Union[Moved, _Mapping]] = ...) -> None: ...
