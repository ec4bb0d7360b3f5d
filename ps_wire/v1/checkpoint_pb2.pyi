from ps_wire.v1 import frames_pb2 as _frames_pb2
from ps_wire.v1 import operations_pb2 as _operations_pb2
from ps_wire.v1 import values_pb2 as _values_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MoveState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MOVE_STATE_UNSPECIFIED: _ClassVar[MoveState]
    MOVE_STATE_LEFT: _ClassVar[MoveState]
    MOVE_STATE_ARRIVING: _ClassVar[MoveState]
    MOVE_STATE_ARRIVED: _ClassVar[MoveState]
    MOVE_STATE_ACCEPTED: _ClassVar[MoveState]
    MOVE_STATE_DROPPED: _ClassVar[MoveState]
MOVE_STATE_UNSPECIFIED: MoveState
MOVE_STATE_LEFT: MoveState
MOVE_STATE_ARRIVING: MoveState
MOVE_STATE_ARRIVED: MoveState
MOVE_STATE_ACCEPTED: MoveState
MOVE_STATE_DROPPED: MoveState

class NumberSet(_message.Message):
    __slots__ = ("floor", "above", "holes")
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    ABOVE_FIELD_NUMBER: _ClassVar[int]
    HOLES_FIELD_NUMBER: _ClassVar[int]
    floor: int
    above: _containers.RepeatedScalarFieldContainer[int]
    holes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, floor: _Optional[int] = ..., above: _Optional[_Iterable[int]] = ..., holes: _Optional[_Iterable[int]] = ...) -> None: ...

class Frozen(_message.Message):
    __slots__ = ("parameters",)
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    parameters: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, parameters: _Optional[_Iterable[str]] = ...) -> None: ...

class RoundMember(_message.Message):
    __slots__ = ("trainer", "epoch", "clock")
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    trainer: bytes
    epoch: int
    clock: int
    def __init__(self, trainer: _Optional[bytes] = ..., epoch: _Optional[int] = ..., clock: _Optional[int] = ...) -> None: ...

class RoundsRecord(_message.Message):
    __slots__ = ("trainers", "most", "applied", "decisions", "known", "joins", "owners", "open", "held")
    class KnownEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TRAINERS_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    JOINS_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    trainers: _containers.RepeatedCompositeFieldContainer[RoundMember]
    most: int
    applied: int
    decisions: _operations_pb2.Decisions
    known: _containers.ScalarMap[str, int]
    joins: int
    owners: _containers.RepeatedScalarFieldContainer[str]
    open: OpenRound
    held: _containers.RepeatedCompositeFieldContainer[HeldRecord]
    def __init__(self, trainers: _Optional[_Iterable[_Union[RoundMember, _Mapping]]] = ..., most: _Optional[int] = ..., applied: _Optional[int] = ..., decisions: _Optional[_Union[_operations_pb2.Decisions, _Mapping]] = ..., known: _Optional[_Mapping[str, int]] = ..., joins: _Optional[int] = ..., owners: _Optional[_Iterable[str]] = ..., open: _Optional[_Union[OpenRound, _Mapping]] = ..., held: _Optional[_Iterable[_Union[HeldRecord, _Mapping]]] = ...) -> None: ...

class HeldRecord(_message.Message):
    __slots__ = ("key", "read", "gradients")
    KEY_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    key: _operations_pb2.OfferKey
    read: int
    gradients: _values_pb2.Value
    def __init__(self, key: _Optional[_Union[_operations_pb2.OfferKey, _Mapping]] = ..., read: _Optional[int] = ..., gradients: _Optional[_Union[_values_pb2.Value, _Mapping]] = ...) -> None: ...

class OpenRound(_message.Message):
    __slots__ = ("counted", "total", "reports")
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    counted: _containers.RepeatedCompositeFieldContainer[_operations_pb2.CountedGradient]
    total: _values_pb2.Value
    reports: _values_pb2.Value
    def __init__(self, counted: _Optional[_Iterable[_Union[_operations_pb2.CountedGradient, _Mapping]]] = ..., total: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., reports: _Optional[_Union[_values_pb2.Value, _Mapping]] = ...) -> None: ...

class ObjectRecord(_message.Message):
    __slots__ = ("object_id", "name", "class_name", "create", "call", "optimizer", "scheduler", "value", "payload", "state", "tensors", "version", "policy", "rounds", "beside", "dependency_only", "frozen", "steps", "curves", "identity", "namespace")
    class BesideEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class StepsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    BESIDE_FIELD_NUMBER: _ClassVar[int]
    DEPENDENCY_ONLY_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    CURVES_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    object_id: str
    name: str
    class_name: str
    create: _operations_pb2.CreateRequest
    call: _operations_pb2.CallRequest
    optimizer: _operations_pb2.OptimizerRequest
    scheduler: _operations_pb2.SchedulerRequest
    value: _values_pb2.Value
    payload: str
    state: _values_pb2.Value
    tensors: _containers.RepeatedScalarFieldContainer[str]
    version: int
    policy: _values_pb2.Value
    rounds: RoundsRecord
    beside: _containers.ScalarMap[str, int]
    dependency_only: bool
    frozen: Frozen
    steps: _containers.ScalarMap[str, int]
    curves: _containers.RepeatedCompositeFieldContainer[_operations_pb2.Curve]
    identity: str
    namespace: str
    def __init__(self, object_id: _Optional[str] = ..., name: _Optional[str] = ..., class_name: _Optional[str] = ..., create: _Optional[_Union[_operations_pb2.CreateRequest, _Mapping]] = ..., call: _Optional[_Union[_operations_pb2.CallRequest, _Mapping]] = ..., optimizer: _Optional[_Union[_operations_pb2.OptimizerRequest, _Mapping]] = ..., scheduler: _Optional[_Union[_operations_pb2.SchedulerRequest, _Mapping]] = ..., value: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., payload: _Optional[str] = ..., state: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., tensors: _Optional[_Iterable[str]] = ..., version: _Optional[int] = ..., policy: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., rounds: _Optional[_Union[RoundsRecord, _Mapping]] = ..., beside: _Optional[_Mapping[str, int]] = ..., dependency_only: bool = ..., frozen: _Optional[_Union[Frozen, _Mapping]] = ..., steps: _Optional[_Mapping[str, int]] = ..., curves: _Optional[_Iterable[_Union[_operations_pb2.Curve, _Mapping]]] = ..., identity: _Optional[str] = ..., namespace: _Optional[str] = ...) -> None: ...

class AnswerRecord(_message.Message):
    __slots__ = ("number", "frame", "payload")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    number: int
    frame: _frames_pb2.Frame
    payload: str
    def __init__(self, number: _Optional[int] = ..., frame: _Optional[_Union[_frames_pb2.Frame, _Mapping]] = ..., payload: _Optional[str] = ...) -> None: ...

class ReferenceRecord(_message.Message):
    __slots__ = ("object_id", "count")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    object_id: str
    count: int
    def __init__(self, object_id: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class SessionRecord(_message.Message):
    __slots__ = ("trainer", "taken", "answers", "references", "identity")
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    trainer: bytes
    taken: NumberSet
    answers: _containers.RepeatedCompositeFieldContainer[AnswerRecord]
    references: _containers.RepeatedCompositeFieldContainer[ReferenceRecord]
    identity: str
    def __init__(self, trainer: _Optional[bytes] = ..., taken: _Optional[_Union[NumberSet, _Mapping]] = ..., answers: _Optional[_Iterable[_Union[AnswerRecord, _Mapping]]] = ..., references: _Optional[_Iterable[_Union[ReferenceRecord, _Mapping]]] = ..., identity: _Optional[str] = ...) -> None: ...

class PassesRecord(_message.Message):
    __slots__ = ("trainer", "ended", "lost", "killed")
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    KILLED_FIELD_NUMBER: _ClassVar[int]
    trainer: bytes
    ended: NumberSet
    lost: _containers.RepeatedScalarFieldContainer[int]
    killed: int
    def __init__(self, trainer: _Optional[bytes] = ..., ended: _Optional[_Union[NumberSet, _Mapping]] = ..., lost: _Optional[_Iterable[int]] = ..., killed: _Optional[int] = ...) -> None: ...

class MemberRecord(_message.Message):
    __slots__ = ("member", "session", "incarnation", "earlier")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    member: _operations_pb2.Member
    session: bytes
    incarnation: str
    earlier: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, member: _Optional[_Union[_operations_pb2.Member, _Mapping]] = ..., session: _Optional[bytes] = ..., incarnation: _Optional[str] = ..., earlier: _Optional[_Iterable[str]] = ...) -> None: ...

class RunRecord(_message.Message):
    __slots__ = ("trainer", "run", "object_id", "places", "versions")
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    trainer: bytes
    run: int
    object_id: str
    places: _containers.RepeatedScalarFieldContainer[int]
    versions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, trainer: _Optional[bytes] = ..., run: _Optional[int] = ..., object_id: _Optional[str] = ..., places: _Optional[_Iterable[int]] = ..., versions: _Optional[_Iterable[int]] = ...) -> None: ...

class RowsRecord(_message.Message):
    __slots__ = ("object_id", "name", "end")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    object_id: str
    name: str
    end: int
    def __init__(self, object_id: _Optional[str] = ..., name: _Optional[str] = ..., end: _Optional[int] = ...) -> None: ...

class PieceRecord(_message.Message):
    __slots__ = ("position", "rows")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    position: int
    rows: _containers.RepeatedCompositeFieldContainer[RowsRecord]
    def __init__(self, position: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[RowsRecord, _Mapping]]] = ...) -> None: ...

class MovedRecords(_message.Message):
    __slots__ = ("objects", "runs")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[ObjectRecord]
    runs: _containers.RepeatedCompositeFieldContainer[RunRecord]
    def __init__(self, objects: _Optional[_Iterable[_Union[ObjectRecord, _Mapping]]] = ..., runs: _Optional[_Iterable[_Union[RunRecord, _Mapping]]] = ...) -> None: ...

class MovedObject(_message.Message):
    __slots__ = ("object_id", "name")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    object_id: str
    name: str
    def __init__(self, object_id: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class MoveEffect(_message.Message):
    __slots__ = ("state", "move", "owner", "objects", "runs")
    STATE_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    state: MoveState
    move: str
    owner: str
    objects: _containers.RepeatedCompositeFieldContainer[MovedObject]
    runs: _containers.RepeatedCompositeFieldContainer[RunRecord]
    def __init__(self, state: _Optional[_Union[MoveState, str]] = ..., move: _Optional[str] = ..., owner: _Optional[str] = ..., objects: _Optional[_Iterable[_Union[MovedObject, _Mapping]]] = ..., runs: _Optional[_Iterable[_Union[RunRecord, _Mapping]]] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("objects", "sessions", "passes", "members", "generator", "runs", "position", "running", "killed", "pieces", "whole", "prepared", "code", "moves")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    GENERATOR_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    KILLED_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[ObjectRecord]
    sessions: _containers.RepeatedCompositeFieldContainer[SessionRecord]
    passes: _containers.RepeatedCompositeFieldContainer[PassesRecord]
    members: _containers.RepeatedCompositeFieldContainer[MemberRecord]
    generator: bytes
    runs: _containers.RepeatedCompositeFieldContainer[RunRecord]
    position: int
    running: bool
    killed: _containers.RepeatedScalarFieldContainer[str]
    pieces: _containers.RepeatedCompositeFieldContainer[PieceRecord]
    whole: int
    prepared: _containers.RepeatedCompositeFieldContainer[PreparedRecord]
    code: bytes
    moves: _containers.RepeatedCompositeFieldContainer[MoveEffect]
    def __init__(self, objects: _Optional[_Iterable[_Union[ObjectRecord, _Mapping]]] = ..., sessions: _Optional[_Iterable[_Union[SessionRecord, _Mapping]]] = ..., passes: _Optional[_Iterable[_Union[PassesRecord, _Mapping]]] = ..., members: _Optional[_Iterable[_Union[MemberRecord, _Mapping]]] = ..., generator: _Optional[bytes] = ..., runs: _Optional[_Iterable[_Union[RunRecord, _Mapping]]] = ..., position: _Optional[int] = ..., running: bool = ..., killed: _Optional[_Iterable[str]] = ..., pieces: _Optional[_Iterable[_Union[PieceRecord, _Mapping]]] = ..., whole: _Optional[int] = ..., prepared: _Optional[_Iterable[_Union[PreparedRecord, _Mapping]]] = ..., code: _Optional[bytes] = ..., moves: _Optional[_Iterable[_Union[MoveEffect, _Mapping]]] = ...) -> None: ...

class StepEffect(_message.Message):
    __slots__ = ("object_id", "version", "places", "gradients", "beside", "trainer", "number", "is_prepared")
    class BesideEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    BESIDE_FIELD_NUMBER: _ClassVar[int]
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    IS_PREPARED_FIELD_NUMBER: _ClassVar[int]
    object_id: str
    version: int
    places: _containers.RepeatedScalarFieldContainer[int]
    gradients: _values_pb2.Value
    beside: _containers.ScalarMap[str, int]
    trainer: bytes
    number: int
    is_prepared: bool
    def __init__(self, object_id: _Optional[str] = ..., version: _Optional[int] = ..., places: _Optional[_Iterable[int]] = ..., gradients: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., beside: _Optional[_Mapping[str, int]] = ..., trainer: _Optional[bytes] = ..., number: _Optional[int] = ..., is_prepared: bool = ...) -> None: ...

class PreparedEffect(_message.Message):
    __slots__ = ("trainer", "number", "object_id", "places", "gradients", "run_trainer", "run", "place")
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    RUN_TRAINER_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    trainer: bytes
    number: int
    object_id: str
    places: _containers.RepeatedScalarFieldContainer[int]
    gradients: _values_pb2.Value
    run_trainer: bytes
    run: int
    place: int
    def __init__(self, trainer: _Optional[bytes] = ..., number: _Optional[int] = ..., object_id: _Optional[str] = ..., places: _Optional[_Iterable[int]] = ..., gradients: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., run_trainer: _Optional[bytes] = ..., run: _Optional[int] = ..., place: _Optional[int] = ...) -> None: ...

class PreparedRecord(_message.Message):
    __slots__ = ("prepared", "tensors")
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    prepared: PreparedEffect
    tensors: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, prepared: _Optional[_Union[PreparedEffect, _Mapping]] = ..., tensors: _Optional[_Iterable[str]] = ...) -> None: ...

class AgainEffect(_message.Message):
    __slots__ = ("request", "offset", "nbytes")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    request: _frames_pb2.Request
    offset: int
    nbytes: int
    def __init__(self, request: _Optional[_Union[_frames_pb2.Request, _Mapping]] = ..., offset: _Optional[int] = ..., nbytes: _Optional[int] = ...) -> None: ...

class BuffersEffect(_message.Message):
    __slots__ = ("object_id", "buffers")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    object_id: str
    buffers: _values_pb2.Value
    def __init__(self, object_id: _Optional[str] = ..., buffers: _Optional[_Union[_values_pb2.Value, _Mapping]] = ...) -> None: ...

class AttemptEffect(_message.Message):
    __slots__ = ("trainer", "run", "object_id", "place", "version")
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    trainer: bytes
    run: int
    object_id: str
    place: int
    version: int
    def __init__(self, trainer: _Optional[bytes] = ..., run: _Optional[int] = ..., object_id: _Optional[str] = ..., place: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class RowsEffect(_message.Message):
    __slots__ = ("object_id", "time", "added", "removed", "cleared", "seen", "admission", "images", "restore", "stepped", "routing")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    STEPPED_FIELD_NUMBER: _ClassVar[int]
    ROUTING_FIELD_NUMBER: _ClassVar[int]
    object_id: str
    time: int
    added: _values_pb2.Value
    removed: _values_pb2.Value
    cleared: _values_pb2.Value
    seen: _values_pb2.Value
    admission: _values_pb2.Value
    images: _values_pb2.Value
    restore: int
    stepped: _values_pb2.Value
    routing: _values_pb2.Value
    def __init__(self, object_id: _Optional[str] = ..., time: _Optional[int] = ..., added: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., removed: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., cleared: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., seen: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., admission: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., images: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., restore: _Optional[int] = ..., stepped: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., routing: _Optional[_Union[_values_pb2.Value, _Mapping]] = ...) -> None: ...

class PooledEffect(_message.Message):
    __slots__ = ("counted", "places", "gradients", "values")
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    counted: _operations_pb2.CountedGradient
    places: _containers.RepeatedScalarFieldContainer[int]
    gradients: _values_pb2.Value
    values: _values_pb2.Value
    def __init__(self, counted: _Optional[_Union[_operations_pb2.CountedGradient, _Mapping]] = ..., places: _Optional[_Iterable[int]] = ..., gradients: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., values: _Optional[_Union[_values_pb2.Value, _Mapping]] = ...) -> None: ...

class RoundsEffect(_message.Message):
    __slots__ = ("object_id", "pooled", "step", "divisor", "dropped", "version", "left", "members", "most", "policy", "owners", "decisions", "held", "released", "failed")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    POOLED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DIVISOR_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    object_id: str
    pooled: PooledEffect
    step: StepEffect
    divisor: int
    dropped: bool
    version: int
    left: _containers.RepeatedScalarFieldContainer[bytes]
    members: _containers.RepeatedCompositeFieldContainer[RoundMember]
    most: int
    policy: _values_pb2.Value
    owners: _containers.RepeatedScalarFieldContainer[str]
    decisions: _operations_pb2.Decisions
    held: HeldEffect
    released: _containers.RepeatedCompositeFieldContainer[_operations_pb2.OfferKey]
    failed: str
    def __init__(self, object_id: _Optional[str] = ..., pooled: _Optional[_Union[PooledEffect, _Mapping]] = ..., step: _Optional[_Union[StepEffect, _Mapping]] = ..., divisor: _Optional[int] = ..., dropped: bool = ..., version: _Optional[int] = ..., left: _Optional[_Iterable[bytes]] = ..., members: _Optional[_Iterable[_Union[RoundMember, _Mapping]]] = ..., most: _Optional[int] = ..., policy: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., owners: _Optional[_Iterable[str]] = ..., decisions: _Optional[_Union[_operations_pb2.Decisions, _Mapping]] = ..., held: _Optional[_Union[HeldEffect, _Mapping]] = ..., released: _Optional[_Iterable[_Union[_operations_pb2.OfferKey, _Mapping]]] = ..., failed: _Optional[str] = ...) -> None: ...

class HeldEffect(_message.Message):
    __slots__ = ("key", "read", "places", "gradients")
    KEY_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    key: _operations_pb2.OfferKey
    read: int
    places: _containers.RepeatedScalarFieldContainer[int]
    gradients: _values_pb2.Value
    def __init__(self, key: _Optional[_Union[_operations_pb2.OfferKey, _Mapping]] = ..., read: _Optional[int] = ..., places: _Optional[_Iterable[int]] = ..., gradients: _Optional[_Union[_values_pb2.Value, _Mapping]] = ...) -> None: ...

class Effect(_message.Message):
    __slots__ = ("object", "step", "again", "session_began", "session_ended", "buffers", "attempt", "rows", "rounds", "prepared", "moved", "member", "unkept", "identity")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    SESSION_BEGAN_FIELD_NUMBER: _ClassVar[int]
    SESSION_ENDED_FIELD_NUMBER: _ClassVar[int]
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    UNKEPT_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    object: ObjectRecord
    step: StepEffect
    again: AgainEffect
    session_began: bytes
    session_ended: bytes
    buffers: BuffersEffect
    attempt: AttemptEffect
    rows: RowsEffect
    rounds: RoundsEffect
    prepared: PreparedEffect
    moved: MoveEffect
    member: MemberRecord
    unkept: str
    identity: str
    def __init__(self, object: _Optional[_Union[ObjectRecord, _Mapping]] = ..., step: _Optional[_Union[StepEffect, _Mapping]] = ..., again: _Optional[_Union[AgainEffect, _Mapping]] = ..., session_began: _Optional[bytes] = ..., session_ended: _Optional[bytes] = ..., buffers: _Optional[_Union[BuffersEffect, _Mapping]] = ..., attempt: _Optional[_Union[AttemptEffect, _Mapping]] = ..., rows: _Optional[_Union[RowsEffect, _Mapping]] = ..., rounds: _Optional[_Union[RoundsEffect, _Mapping]] = ..., prepared: _Optional[_Union[PreparedEffect, _Mapping]] = ..., moved: _Optional[_Union[MoveEffect, _Mapping]] = ..., member: _Optional[_Union[MemberRecord, _Mapping]] = ..., unkept: _Optional[str] = ..., identity: _Optional[str] = ...) -> None: ...

class LogRecord(_message.Message):
    __slots__ = ("effects", "trainer", "answer", "answer_offset", "answer_nbytes", "generator", "granted", "opened", "incarnation", "owner", "over")
    EFFECTS_FIELD_NUMBER: _ClassVar[int]
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    ANSWER_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ANSWER_NBYTES_FIELD_NUMBER: _ClassVar[int]
    GENERATOR_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    effects: _containers.RepeatedCompositeFieldContainer[Effect]
    trainer: bytes
    answer: AnswerRecord
    answer_offset: int
    answer_nbytes: int
    generator: bytes
    granted: _containers.RepeatedScalarFieldContainer[str]
    opened: int
    incarnation: str
    owner: str
    over: int
    def __init__(self, effects: _Optional[_Iterable[_Union[Effect, _Mapping]]] = ..., trainer: _Optional[bytes] = ..., answer: _Optional[_Union[AnswerRecord, _Mapping]] = ..., answer_offset: _Optional[int] = ..., answer_nbytes: _Optional[int] = ..., generator: _Optional[bytes] = ..., granted: _Optional[_Iterable[str]] = ..., opened: _Optional[int] = ..., incarnation: _Optional[str] = ..., owner: _Optional[str] = ..., over: _Optional[int] = ...) -> None: ...
