from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DirectoryEntry(_message.Message):
    __slots__ = ("name", "address", "id", "epoch", "incarnation", "earlier", "keeper", "gone")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    KEEPER_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    id: int
    epoch: int
    incarnation: str
    earlier: _containers.RepeatedScalarFieldContainer[str]
    keeper: str
    gone: bool
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., id: _Optional[int] = ..., epoch: _Optional[int] = ..., incarnation: _Optional[str] = ..., earlier: _Optional[_Iterable[str]] = ..., keeper: _Optional[str] = ..., gone: bool = ...) -> None: ...

class ClaimRequest(_message.Message):
    __slots__ = ("entry", "keepers", "leaves", "version")
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    KEEPERS_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    entry: DirectoryEntry
    keepers: _containers.RepeatedScalarFieldContainer[str]
    leaves: bool
    version: str
    def __init__(self, entry: _Optional[_Union[DirectoryEntry, _Mapping]] = ..., keepers: _Optional[_Iterable[str]] = ..., leaves: bool = ..., version: _Optional[str] = ...) -> None: ...

class ClaimReply(_message.Message):
    __slots__ = ("outcome", "keeper", "entry", "number", "version", "entries")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    KEEPER_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    outcome: int
    keeper: str
    entry: DirectoryEntry
    number: int
    version: str
    entries: _containers.RepeatedCompositeFieldContainer[DirectoryEntry]
    def __init__(self, outcome: _Optional[int] = ..., keeper: _Optional[str] = ..., entry: _Optional[_Union[DirectoryEntry, _Mapping]] = ..., number: _Optional[int] = ..., version: _Optional[str] = ..., entries: _Optional[_Iterable[_Union[DirectoryEntry, _Mapping]]] = ...) -> None: ...
