from ps_wire.v1 import errors_pb2 as _errors_pb2
from ps_wire.v1 import values_pb2 as _values_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Reads(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    READS_CONSISTENT: _ClassVar[Reads]
    READS_INCONSISTENT: _ClassVar[Reads]

class NonFinite(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NON_FINITE_APPLY: _ClassVar[NonFinite]
    NON_FINITE_REFUSE: _ClassVar[NonFinite]

class Reduction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REDUCTION_UNSPECIFIED: _ClassVar[Reduction]
    REDUCTION_MEAN: _ClassVar[Reduction]
    REDUCTION_SUM: _ClassVar[Reduction]
    REDUCTION_KEEP: _ClassVar[Reduction]
    REDUCTION_MIN: _ClassVar[Reduction]
    REDUCTION_MAX: _ClassVar[Reduction]
    REDUCTION_PRODUCT: _ClassVar[Reduction]

class CollectiveKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COLLECTIVE_UNSPECIFIED: _ClassVar[CollectiveKind]
    COLLECTIVE_BARRIER: _ClassVar[CollectiveKind]
    COLLECTIVE_GATHER: _ClassVar[CollectiveKind]
    COLLECTIVE_BROADCAST: _ClassVar[CollectiveKind]
    COLLECTIVE_SCATTER: _ClassVar[CollectiveKind]
    COLLECTIVE_ALL_GATHER: _ClassVar[CollectiveKind]
    COLLECTIVE_ALL_REDUCE: _ClassVar[CollectiveKind]

class MoveAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MOVE_UNSPECIFIED: _ClassVar[MoveAction]
    MOVE_PLAN: _ClassVar[MoveAction]
    MOVE_BEGIN: _ClassVar[MoveAction]
    MOVE_READ: _ClassVar[MoveAction]
    MOVE_CLOSE: _ClassVar[MoveAction]
    MOVE_QUIET: _ClassVar[MoveAction]
    MOVE_RELEASE: _ClassVar[MoveAction]
    MOVE_REOPEN: _ClassVar[MoveAction]
    MOVE_END: _ClassVar[MoveAction]
    MOVE_STAGE: _ClassVar[MoveAction]
    MOVE_MAKE: _ClassVar[MoveAction]
    MOVE_ARRIVE: _ClassVar[MoveAction]
    MOVE_ACCEPT: _ClassVar[MoveAction]
    MOVE_DROP: _ClassVar[MoveAction]
READS_CONSISTENT: Reads
READS_INCONSISTENT: Reads
NON_FINITE_APPLY: NonFinite
NON_FINITE_REFUSE: NonFinite
REDUCTION_UNSPECIFIED: Reduction
REDUCTION_MEAN: Reduction
REDUCTION_SUM: Reduction
REDUCTION_KEEP: Reduction
REDUCTION_MIN: Reduction
REDUCTION_MAX: Reduction
REDUCTION_PRODUCT: Reduction
COLLECTIVE_UNSPECIFIED: CollectiveKind
COLLECTIVE_BARRIER: CollectiveKind
COLLECTIVE_GATHER: CollectiveKind
COLLECTIVE_BROADCAST: CollectiveKind
COLLECTIVE_SCATTER: CollectiveKind
COLLECTIVE_ALL_GATHER: CollectiveKind
COLLECTIVE_ALL_REDUCE: CollectiveKind
MOVE_UNSPECIFIED: MoveAction
MOVE_PLAN: MoveAction
MOVE_BEGIN: MoveAction
MOVE_READ: MoveAction
MOVE_CLOSE: MoveAction
MOVE_QUIET: MoveAction
MOVE_RELEASE: MoveAction
MOVE_REOPEN: MoveAction
MOVE_END: MoveAction
MOVE_STAGE: MoveAction
MOVE_MAKE: MoveAction
MOVE_ARRIVE: MoveAction
MOVE_ACCEPT: MoveAction
MOVE_DROP: MoveAction

class ContextId(_message.Message):
    __slots__ = ("trainer", "number", "run", "runs_from")
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    RUNS_FROM_FIELD_NUMBER: _ClassVar[int]
    trainer: bytes
    number: int
    run: int
    runs_from: int
    def __init__(self, trainer: _Optional[bytes] = ..., number: _Optional[int] = ..., run: _Optional[int] = ..., runs_from: _Optional[int] = ...) -> None: ...

class ParameterInfo(_message.Message):
    __slots__ = ("name", "dtype", "shape", "requires_grad")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    REQUIRES_GRAD_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: _values_pb2.DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    requires_grad: bool
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[_values_pb2.DType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., requires_grad: bool = ...) -> None: ...

class ObjectInfo(_message.Message):
    __slots__ = ("handle", "class_name", "name", "methods", "parameters", "unmarked")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    METHODS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    UNMARKED_FIELD_NUMBER: _ClassVar[int]
    handle: _values_pb2.Handle
    class_name: str
    name: str
    methods: _containers.RepeatedScalarFieldContainer[str]
    parameters: _containers.RepeatedCompositeFieldContainer[ParameterInfo]
    unmarked: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, handle: _Optional[_Union[_values_pb2.Handle, _Mapping]] = ..., class_name: _Optional[str] = ..., name: _Optional[str] = ..., methods: _Optional[_Iterable[str]] = ..., parameters: _Optional[_Iterable[_Union[ParameterInfo, _Mapping]]] = ..., unmarked: _Optional[_Iterable[str]] = ...) -> None: ...

class CreateRequest(_message.Message):
    __slots__ = ("class_name", "args", "kwargs", "name", "seed", "default_seed", "replace", "source")
    CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    KWARGS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SEED_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    class_name: str
    args: _values_pb2.Value
    kwargs: _values_pb2.Value
    name: str
    seed: int
    default_seed: int
    replace: bool
    source: bytes
    def __init__(self, class_name: _Optional[str] = ..., args: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., kwargs: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., name: _Optional[str] = ..., seed: _Optional[int] = ..., default_seed: _Optional[int] = ..., replace: bool = ..., source: _Optional[bytes] = ...) -> None: ...

class CreateReply(_message.Message):
    __slots__ = ("object", "created", "owners", "epoch", "part", "warning")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    object: ObjectInfo
    created: bool
    owners: _containers.RepeatedScalarFieldContainer[str]
    epoch: int
    part: PartState
    warning: str
    def __init__(self, object: _Optional[_Union[ObjectInfo, _Mapping]] = ..., created: bool = ..., owners: _Optional[_Iterable[str]] = ..., epoch: _Optional[int] = ..., part: _Optional[_Union[PartState, _Mapping]] = ..., warning: _Optional[str] = ...) -> None: ...

class PartState(_message.Message):
    __slots__ = ("version", "number", "known")
    class KnownEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    version: int
    number: int
    known: _containers.ScalarMap[str, int]
    def __init__(self, version: _Optional[int] = ..., number: _Optional[int] = ..., known: _Optional[_Mapping[str, int]] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("name", "handle", "part")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    name: str
    handle: _values_pb2.Handle
    part: OptimizerLayout
    def __init__(self, name: _Optional[str] = ..., handle: _Optional[_Union[_values_pb2.Handle, _Mapping]] = ..., part: _Optional[_Union[OptimizerLayout, _Mapping]] = ...) -> None: ...

class AttachReply(_message.Message):
    __slots__ = ("object", "layout")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    object: ObjectInfo
    layout: OptimizerLayout
    def __init__(self, object: _Optional[_Union[ObjectInfo, _Mapping]] = ..., layout: _Optional[_Union[OptimizerLayout, _Mapping]] = ...) -> None: ...

class OptimizerLayout(_message.Message):
    __slots__ = ("groups", "own", "is_named", "non_finite", "scheduler")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    IS_NAMED_FIELD_NUMBER: _ClassVar[int]
    NON_FINITE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[ParameterDigests]
    own: _containers.RepeatedCompositeFieldContainer[ParameterDigests]
    is_named: bool
    non_finite: NonFinite
    scheduler: str
    def __init__(self, groups: _Optional[_Iterable[_Union[ParameterDigests, _Mapping]]] = ..., own: _Optional[_Iterable[_Union[ParameterDigests, _Mapping]]] = ..., is_named: bool = ..., non_finite: _Optional[_Union[NonFinite, str]] = ..., scheduler: _Optional[str] = ...) -> None: ...

class ParameterDigests(_message.Message):
    __slots__ = ("parameters",)
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    parameters: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, parameters: _Optional[_Iterable[int]] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("object_ids",)
    OBJECT_IDS_FIELD_NUMBER: _ClassVar[int]
    object_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, object_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("name", "everywhere", "handle")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EVERYWHERE_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    everywhere: bool
    handle: _values_pb2.Handle
    def __init__(self, name: _Optional[str] = ..., everywhere: bool = ..., handle: _Optional[_Union[_values_pb2.Handle, _Mapping]] = ...) -> None: ...

class DeleteReply(_message.Message):
    __slots__ = ("owners",)
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    owners: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, owners: _Optional[_Iterable[str]] = ...) -> None: ...

class Autocast(_message.Message):
    __slots__ = ("device", "dtype")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    device: str
    dtype: _values_pb2.DType
    def __init__(self, device: _Optional[str] = ..., dtype: _Optional[_Union[_values_pb2.DType, str]] = ...) -> None: ...

class Numerics(_message.Message):
    __slots__ = ("autocast", "seed")
    AUTOCAST_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    autocast: _containers.RepeatedCompositeFieldContainer[Autocast]
    seed: int
    def __init__(self, autocast: _Optional[_Iterable[_Union[Autocast, _Mapping]]] = ..., seed: _Optional[int] = ...) -> None: ...

class CallRequest(_message.Message):
    __slots__ = ("target", "method", "args", "kwargs", "context", "call", "training", "keep", "function", "place", "numerics", "result_id", "results", "own_mode")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    KWARGS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    RESULT_ID_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    OWN_MODE_FIELD_NUMBER: _ClassVar[int]
    target: _values_pb2.Handle
    method: str
    args: _values_pb2.Value
    kwargs: _values_pb2.Value
    context: ContextId
    call: int
    training: bool
    keep: bool
    function: str
    place: _containers.RepeatedScalarFieldContainer[int]
    numerics: Numerics
    result_id: str
    results: _containers.RepeatedScalarFieldContainer[str]
    own_mode: bool
    def __init__(self, target: _Optional[_Union[_values_pb2.Handle, _Mapping]] = ..., method: _Optional[str] = ..., args: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., kwargs: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., context: _Optional[_Union[ContextId, _Mapping]] = ..., call: _Optional[int] = ..., training: bool = ..., keep: bool = ..., function: _Optional[str] = ..., place: _Optional[_Iterable[int]] = ..., numerics: _Optional[_Union[Numerics, _Mapping]] = ..., result_id: _Optional[str] = ..., results: _Optional[_Iterable[str]] = ..., own_mode: bool = ...) -> None: ...

class CallReply(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: _values_pb2.Value
    def __init__(self, result: _Optional[_Union[_values_pb2.Value, _Mapping]] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("target", "context", "call", "place")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    target: _values_pb2.Handle
    context: ContextId
    call: int
    place: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, target: _Optional[_Union[_values_pb2.Handle, _Mapping]] = ..., context: _Optional[_Union[ContextId, _Mapping]] = ..., call: _Optional[int] = ..., place: _Optional[_Iterable[int]] = ...) -> None: ...

class FetchReply(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _values_pb2.Value
    def __init__(self, value: _Optional[_Union[_values_pb2.Value, _Mapping]] = ...) -> None: ...

class RecordedCall(_message.Message):
    __slots__ = ("call", "outputs", "gradients", "place", "after")
    CALL_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    call: int
    outputs: _containers.RepeatedScalarFieldContainer[int]
    gradients: _values_pb2.Value
    place: _containers.RepeatedScalarFieldContainer[int]
    after: int
    def __init__(self, call: _Optional[int] = ..., outputs: _Optional[_Iterable[int]] = ..., gradients: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., place: _Optional[_Iterable[int]] = ..., after: _Optional[int] = ...) -> None: ...

class BackwardRequest(_message.Message):
    __slots__ = ("context", "call", "outputs", "gradients", "retain_graph", "backward", "place", "after", "numerics", "more", "steps", "end", "wait_seconds", "together", "checks", "marks")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    RETAIN_GRAPH_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOGETHER_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    context: ContextId
    call: int
    outputs: _containers.RepeatedScalarFieldContainer[int]
    gradients: _values_pb2.Value
    retain_graph: bool
    backward: int
    place: _containers.RepeatedScalarFieldContainer[int]
    after: int
    numerics: Numerics
    more: _containers.RepeatedCompositeFieldContainer[RecordedCall]
    steps: _containers.RepeatedCompositeFieldContainer[_values_pb2.Handle]
    end: EndContextRequest
    wait_seconds: float
    together: bool
    checks: _containers.RepeatedCompositeFieldContainer[_values_pb2.Handle]
    marks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, context: _Optional[_Union[ContextId, _Mapping]] = ..., call: _Optional[int] = ..., outputs: _Optional[_Iterable[int]] = ..., gradients: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., retain_graph: bool = ..., backward: _Optional[int] = ..., place: _Optional[_Iterable[int]] = ..., after: _Optional[int] = ..., numerics: _Optional[_Union[Numerics, _Mapping]] = ..., more: _Optional[_Iterable[_Union[RecordedCall, _Mapping]]] = ..., steps: _Optional[_Iterable[_Union[_values_pb2.Handle, _Mapping]]] = ..., end: _Optional[_Union[EndContextRequest, _Mapping]] = ..., wait_seconds: _Optional[float] = ..., together: bool = ..., checks: _Optional[_Iterable[_Union[_values_pb2.Handle, _Mapping]]] = ..., marks: _Optional[_Iterable[int]] = ...) -> None: ...

class BackwardReply(_message.Message):
    __slots__ = ("gradients", "more", "versions", "step_error", "seconds", "stepped", "checked", "durable_versions", "staleness")
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    STEP_ERROR_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEPPED_FIELD_NUMBER: _ClassVar[int]
    CHECKED_FIELD_NUMBER: _ClassVar[int]
    DURABLE_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    gradients: _values_pb2.Value
    more: _containers.RepeatedCompositeFieldContainer[_values_pb2.Value]
    versions: _containers.RepeatedScalarFieldContainer[int]
    step_error: _errors_pb2.Error
    seconds: _containers.RepeatedScalarFieldContainer[float]
    stepped: _containers.RepeatedCompositeFieldContainer[StepReply]
    checked: bool
    durable_versions: _containers.RepeatedScalarFieldContainer[int]
    staleness: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, gradients: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., more: _Optional[_Iterable[_Union[_values_pb2.Value, _Mapping]]] = ..., versions: _Optional[_Iterable[int]] = ..., step_error: _Optional[_Union[_errors_pb2.Error, _Mapping]] = ..., seconds: _Optional[_Iterable[float]] = ..., stepped: _Optional[_Iterable[_Union[StepReply, _Mapping]]] = ..., checked: bool = ..., durable_versions: _Optional[_Iterable[int]] = ..., staleness: _Optional[_Iterable[int]] = ...) -> None: ...

class GradientsRequest(_message.Message):
    __slots__ = ("context",)
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    context: ContextId
    def __init__(self, context: _Optional[_Union[ContextId, _Mapping]] = ...) -> None: ...

class GradientsReply(_message.Message):
    __slots__ = ("parameters", "gradients", "others")
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    parameters: _containers.RepeatedCompositeFieldContainer[_values_pb2.Handle]
    gradients: _values_pb2.Value
    others: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, parameters: _Optional[_Iterable[_Union[_values_pb2.Handle, _Mapping]]] = ..., gradients: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., others: _Optional[_Iterable[str]] = ...) -> None: ...

class NormRequest(_message.Message):
    __slots__ = ("context", "parameters", "norm_type")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    NORM_TYPE_FIELD_NUMBER: _ClassVar[int]
    context: ContextId
    parameters: _containers.RepeatedCompositeFieldContainer[_values_pb2.Handle]
    norm_type: float
    def __init__(self, context: _Optional[_Union[ContextId, _Mapping]] = ..., parameters: _Optional[_Iterable[_Union[_values_pb2.Handle, _Mapping]]] = ..., norm_type: _Optional[float] = ...) -> None: ...

class NormReply(_message.Message):
    __slots__ = ("power_sum", "others")
    POWER_SUM_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    power_sum: float
    others: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, power_sum: _Optional[float] = ..., others: _Optional[_Iterable[str]] = ...) -> None: ...

class ScaleRequest(_message.Message):
    __slots__ = ("context", "parameters", "factor")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    context: ContextId
    parameters: _containers.RepeatedCompositeFieldContainer[_values_pb2.Handle]
    factor: float
    def __init__(self, context: _Optional[_Union[ContextId, _Mapping]] = ..., parameters: _Optional[_Iterable[_Union[_values_pb2.Handle, _Mapping]]] = ..., factor: _Optional[float] = ...) -> None: ...

class ScaleReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UnscaleRequest(_message.Message):
    __slots__ = ("optimizer", "context", "factor")
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    optimizer: _values_pb2.Handle
    context: ContextId
    factor: float
    def __init__(self, optimizer: _Optional[_Union[_values_pb2.Handle, _Mapping]] = ..., context: _Optional[_Union[ContextId, _Mapping]] = ..., factor: _Optional[float] = ...) -> None: ...

class UnscaleReply(_message.Message):
    __slots__ = ("present", "non_finite")
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    NON_FINITE_FIELD_NUMBER: _ClassVar[int]
    present: bool
    non_finite: bool
    def __init__(self, present: bool = ..., non_finite: bool = ...) -> None: ...

class SetRequiresGradRequest(_message.Message):
    __slots__ = ("targets", "requires_grad")
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    REQUIRES_GRAD_FIELD_NUMBER: _ClassVar[int]
    targets: _containers.RepeatedCompositeFieldContainer[_values_pb2.Handle]
    requires_grad: bool
    def __init__(self, targets: _Optional[_Iterable[_Union[_values_pb2.Handle, _Mapping]]] = ..., requires_grad: bool = ...) -> None: ...

class SetRequiresGradReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EndContextRequest(_message.Message):
    __slots__ = ("context", "all_before", "but")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    ALL_BEFORE_FIELD_NUMBER: _ClassVar[int]
    BUT_FIELD_NUMBER: _ClassVar[int]
    context: ContextId
    all_before: int
    but: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, context: _Optional[_Union[ContextId, _Mapping]] = ..., all_before: _Optional[int] = ..., but: _Optional[_Iterable[int]] = ...) -> None: ...

class EndContextReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ParameterGroup(_message.Message):
    __slots__ = ("parameters", "options")
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    parameters: _containers.RepeatedCompositeFieldContainer[_values_pb2.Handle]
    options: _values_pb2.Value
    def __init__(self, parameters: _Optional[_Iterable[_Union[_values_pb2.Handle, _Mapping]]] = ..., options: _Optional[_Union[_values_pb2.Value, _Mapping]] = ...) -> None: ...

class OptimizerRequest(_message.Message):
    __slots__ = ("class_name", "groups", "options", "name", "reads", "non_finite", "policy", "owners", "replace", "joins_with_step", "attach", "layout")
    CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    NON_FINITE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    JOINS_WITH_STEP_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    class_name: str
    groups: _containers.RepeatedCompositeFieldContainer[ParameterGroup]
    options: _values_pb2.Value
    name: str
    reads: Reads
    non_finite: NonFinite
    policy: _values_pb2.Value
    owners: _containers.RepeatedScalarFieldContainer[str]
    replace: bool
    joins_with_step: bool
    attach: _values_pb2.Handle
    layout: OptimizerLayout
    def __init__(self, class_name: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[ParameterGroup, _Mapping]]] = ..., options: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., name: _Optional[str] = ..., reads: _Optional[_Union[Reads, str]] = ..., non_finite: _Optional[_Union[NonFinite, str]] = ..., policy: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., owners: _Optional[_Iterable[str]] = ..., replace: bool = ..., joins_with_step: bool = ..., attach: _Optional[_Union[_values_pb2.Handle, _Mapping]] = ..., layout: _Optional[_Union[OptimizerLayout, _Mapping]] = ...) -> None: ...

class SchedulerRequest(_message.Message):
    __slots__ = ("class_name", "optimizer", "args", "kwargs", "name", "replace")
    CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    KWARGS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    class_name: str
    optimizer: _values_pb2.Handle
    args: _values_pb2.Value
    kwargs: _values_pb2.Value
    name: str
    replace: bool
    def __init__(self, class_name: _Optional[str] = ..., optimizer: _Optional[_Union[_values_pb2.Handle, _Mapping]] = ..., args: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., kwargs: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., name: _Optional[str] = ..., replace: bool = ...) -> None: ...

class StepRequest(_message.Message):
    __slots__ = ("optimizer", "context", "check_only", "wait_seconds", "offer", "apart", "finish", "values", "more", "prepare", "beside", "marks")
    class BesideEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    CHECK_ONLY_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    APART_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    BESIDE_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    optimizer: _values_pb2.Handle
    context: ContextId
    check_only: bool
    wait_seconds: float
    offer: Offer
    apart: bool
    finish: bool
    values: _containers.RepeatedCompositeFieldContainer[ReportedValue]
    more: _containers.RepeatedCompositeFieldContainer[_values_pb2.Handle]
    prepare: bool
    beside: _containers.ScalarMap[str, int]
    marks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, optimizer: _Optional[_Union[_values_pb2.Handle, _Mapping]] = ..., context: _Optional[_Union[ContextId, _Mapping]] = ..., check_only: bool = ..., wait_seconds: _Optional[float] = ..., offer: _Optional[_Union[Offer, _Mapping]] = ..., apart: bool = ..., finish: bool = ..., values: _Optional[_Iterable[_Union[ReportedValue, _Mapping]]] = ..., more: _Optional[_Iterable[_Union[_values_pb2.Handle, _Mapping]]] = ..., prepare: bool = ..., beside: _Optional[_Mapping[str, int]] = ..., marks: _Optional[_Iterable[int]] = ...) -> None: ...

class StepReply(_message.Message):
    __slots__ = ("version", "staleness", "counted", "dropped", "decisions", "owners", "policy", "values", "more", "by_itself", "durable_version")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    BY_ITSELF_FIELD_NUMBER: _ClassVar[int]
    DURABLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    staleness: int
    counted: int
    dropped: str
    decisions: Decisions
    owners: _containers.RepeatedScalarFieldContainer[str]
    policy: _values_pb2.Value
    values: _values_pb2.Value
    more: _containers.RepeatedCompositeFieldContainer[StepReply]
    by_itself: bool
    durable_version: int
    def __init__(self, version: _Optional[int] = ..., staleness: _Optional[int] = ..., counted: _Optional[int] = ..., dropped: _Optional[str] = ..., decisions: _Optional[_Union[Decisions, _Mapping]] = ..., owners: _Optional[_Iterable[str]] = ..., policy: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., values: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., more: _Optional[_Iterable[_Union[StepReply, _Mapping]]] = ..., by_itself: bool = ..., durable_version: _Optional[int] = ...) -> None: ...

class ReportedValue(_message.Message):
    __slots__ = ("name", "reduction", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REDUCTION_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    reduction: Reduction
    value: _values_pb2.Value
    def __init__(self, name: _Optional[str] = ..., reduction: _Optional[_Union[Reduction, str]] = ..., value: _Optional[_Union[_values_pb2.Value, _Mapping]] = ...) -> None: ...

class ReportedRequest(_message.Message):
    __slots__ = ("optimizer", "reset")
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    optimizer: _values_pb2.Handle
    reset: bool
    def __init__(self, optimizer: _Optional[_Union[_values_pb2.Handle, _Mapping]] = ..., reset: bool = ...) -> None: ...

class ReportedReply(_message.Message):
    __slots__ = ("values", "names", "counts", "gradients")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    values: _values_pb2.Value
    names: _containers.RepeatedScalarFieldContainer[str]
    counts: _containers.RepeatedScalarFieldContainer[int]
    gradients: int
    def __init__(self, values: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., names: _Optional[_Iterable[str]] = ..., counts: _Optional[_Iterable[int]] = ..., gradients: _Optional[int] = ...) -> None: ...

class AddToCurvesRequest(_message.Message):
    __slots__ = ("optimizer", "values")
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    optimizer: _values_pb2.Handle
    values: _containers.RepeatedCompositeFieldContainer[CurveValues]
    def __init__(self, optimizer: _Optional[_Union[_values_pb2.Handle, _Mapping]] = ..., values: _Optional[_Iterable[_Union[CurveValues, _Mapping]]] = ...) -> None: ...

class CurveValues(_message.Message):
    __slots__ = ("version", "values")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    version: int
    values: _containers.ScalarMap[str, float]
    def __init__(self, version: _Optional[int] = ..., values: _Optional[_Mapping[str, float]] = ...) -> None: ...

class AddToCurvesReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Offer(_message.Message):
    __slots__ = ("number", "epoch", "applied", "withdraw")
    class AppliedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    WITHDRAW_FIELD_NUMBER: _ClassVar[int]
    number: int
    epoch: int
    applied: _containers.ScalarMap[str, int]
    withdraw: bool
    def __init__(self, number: _Optional[int] = ..., epoch: _Optional[int] = ..., applied: _Optional[_Mapping[str, int]] = ..., withdraw: bool = ...) -> None: ...

class OfferKey(_message.Message):
    __slots__ = ("trainer", "number", "epoch")
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    trainer: bytes
    number: int
    epoch: int
    def __init__(self, trainer: _Optional[bytes] = ..., number: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class CountedGradient(_message.Message):
    __slots__ = ("key", "staleness", "weight")
    KEY_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    key: OfferKey
    staleness: int
    weight: float
    def __init__(self, key: _Optional[_Union[OfferKey, _Mapping]] = ..., staleness: _Optional[int] = ..., weight: _Optional[float] = ...) -> None: ...

class ClosedRound(_message.Message):
    __slots__ = ("version", "counted", "divisor")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    DIVISOR_FIELD_NUMBER: _ClassVar[int]
    version: int
    counted: _containers.RepeatedCompositeFieldContainer[CountedGradient]
    divisor: int
    def __init__(self, version: _Optional[int] = ..., counted: _Optional[_Iterable[_Union[CountedGradient, _Mapping]]] = ..., divisor: _Optional[int] = ...) -> None: ...

class Departure(_message.Message):
    __slots__ = ("trainer", "epoch")
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    trainer: bytes
    epoch: int
    def __init__(self, trainer: _Optional[bytes] = ..., epoch: _Optional[int] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("closed", "pooled", "released", "left", "policy", "emptied")
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    POOLED_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    EMPTIED_FIELD_NUMBER: _ClassVar[int]
    closed: ClosedRound
    pooled: CountedGradient
    released: OfferKey
    left: Departure
    policy: _values_pb2.Value
    emptied: bool
    def __init__(self, closed: _Optional[_Union[ClosedRound, _Mapping]] = ..., pooled: _Optional[_Union[CountedGradient, _Mapping]] = ..., released: _Optional[_Union[OfferKey, _Mapping]] = ..., left: _Optional[_Union[Departure, _Mapping]] = ..., policy: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., emptied: bool = ...) -> None: ...

class Decisions(_message.Message):
    __slots__ = ("base", "first", "decisions", "epoch")
    BASE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    base: int
    first: int
    decisions: _containers.RepeatedCompositeFieldContainer[Decision]
    epoch: int
    def __init__(self, base: _Optional[int] = ..., first: _Optional[int] = ..., decisions: _Optional[_Iterable[_Union[Decision, _Mapping]]] = ..., epoch: _Optional[int] = ...) -> None: ...

class HoldRequest(_message.Message):
    __slots__ = ("optimizer", "context", "number", "epoch", "watch")
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    optimizer: _values_pb2.Handle
    context: ContextId
    number: int
    epoch: int
    watch: bool
    def __init__(self, optimizer: _Optional[_Union[_values_pb2.Handle, _Mapping]] = ..., context: _Optional[_Union[ContextId, _Mapping]] = ..., number: _Optional[int] = ..., epoch: _Optional[int] = ..., watch: bool = ...) -> None: ...

class HoldReply(_message.Message):
    __slots__ = ("applied",)
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    applied: int
    def __init__(self, applied: _Optional[int] = ...) -> None: ...

class SettleRequest(_message.Message):
    __slots__ = ("optimizer", "number", "epoch", "release", "decisions", "step")
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    optimizer: _values_pb2.Handle
    number: int
    epoch: int
    release: bool
    decisions: Decisions
    step: int
    def __init__(self, optimizer: _Optional[_Union[_values_pb2.Handle, _Mapping]] = ..., number: _Optional[int] = ..., epoch: _Optional[int] = ..., release: bool = ..., decisions: _Optional[_Union[Decisions, _Mapping]] = ..., step: _Optional[int] = ...) -> None: ...

class SettleReply(_message.Message):
    __slots__ = ("applied", "version", "missing", "failed", "durable_version")
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    DURABLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    applied: int
    version: int
    missing: int
    failed: str
    durable_version: int
    def __init__(self, applied: _Optional[int] = ..., version: _Optional[int] = ..., missing: _Optional[int] = ..., failed: _Optional[str] = ..., durable_version: _Optional[int] = ...) -> None: ...

class SetOptionsRequest(_message.Message):
    __slots__ = ("optimizer", "group", "options", "policy", "owners", "gone_back")
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    GONE_BACK_FIELD_NUMBER: _ClassVar[int]
    optimizer: _values_pb2.Handle
    group: int
    options: _values_pb2.Value
    policy: _values_pb2.Value
    owners: _containers.RepeatedScalarFieldContainer[str]
    gone_back: GoneBack
    def __init__(self, optimizer: _Optional[_Union[_values_pb2.Handle, _Mapping]] = ..., group: _Optional[int] = ..., options: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., policy: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., owners: _Optional[_Iterable[str]] = ..., gone_back: _Optional[_Union[GoneBack, _Mapping]] = ...) -> None: ...

class SetOptionsReply(_message.Message):
    __slots__ = ("decisions",)
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    decisions: Decisions
    def __init__(self, decisions: _Optional[_Union[Decisions, _Mapping]] = ...) -> None: ...

class GoneBack(_message.Message):
    __slots__ = ("owner", "before", "now")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    owner: str
    before: int
    now: int
    def __init__(self, owner: _Optional[str] = ..., before: _Optional[int] = ..., now: _Optional[int] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("optimizer",)
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    optimizer: _values_pb2.Handle
    def __init__(self, optimizer: _Optional[_Union[_values_pb2.Handle, _Mapping]] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ("decisions",)
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    decisions: Decisions
    def __init__(self, decisions: _Optional[_Union[Decisions, _Mapping]] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("target", "marks", "buffers_mark", "reads", "codecs", "codec_of")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    BUFFERS_MARK_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    CODECS_FIELD_NUMBER: _ClassVar[int]
    CODEC_OF_FIELD_NUMBER: _ClassVar[int]
    target: _values_pb2.Handle
    marks: _containers.RepeatedScalarFieldContainer[int]
    buffers_mark: bytes
    reads: Reads
    codecs: _values_pb2.Value
    codec_of: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, target: _Optional[_Union[_values_pb2.Handle, _Mapping]] = ..., marks: _Optional[_Iterable[int]] = ..., buffers_mark: _Optional[bytes] = ..., reads: _Optional[_Union[Reads, str]] = ..., codecs: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., codec_of: _Optional[_Iterable[int]] = ...) -> None: ...

class PullReply(_message.Message):
    __slots__ = ("positions", "parameters", "marks", "steps", "buffers", "buffers_mark")
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    BUFFERS_MARK_FIELD_NUMBER: _ClassVar[int]
    positions: _containers.RepeatedScalarFieldContainer[int]
    parameters: _values_pb2.Value
    marks: _containers.RepeatedScalarFieldContainer[int]
    steps: _containers.RepeatedScalarFieldContainer[int]
    buffers: _values_pb2.Value
    buffers_mark: bytes
    def __init__(self, positions: _Optional[_Iterable[int]] = ..., parameters: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., marks: _Optional[_Iterable[int]] = ..., steps: _Optional[_Iterable[int]] = ..., buffers: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., buffers_mark: _Optional[bytes] = ...) -> None: ...

class PushRequest(_message.Message):
    __slots__ = ("optimizer", "target", "positions", "gradients", "steps", "wait_seconds", "pull", "values", "run", "runs_from")
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    RUNS_FROM_FIELD_NUMBER: _ClassVar[int]
    optimizer: _values_pb2.Handle
    target: _values_pb2.Handle
    positions: _containers.RepeatedScalarFieldContainer[int]
    gradients: _values_pb2.Value
    steps: _containers.RepeatedScalarFieldContainer[int]
    wait_seconds: float
    pull: PullRequest
    values: _containers.RepeatedCompositeFieldContainer[ReportedValue]
    run: int
    runs_from: int
    def __init__(self, optimizer: _Optional[_Union[_values_pb2.Handle, _Mapping]] = ..., target: _Optional[_Union[_values_pb2.Handle, _Mapping]] = ..., positions: _Optional[_Iterable[int]] = ..., gradients: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., steps: _Optional[_Iterable[int]] = ..., wait_seconds: _Optional[float] = ..., pull: _Optional[_Union[PullRequest, _Mapping]] = ..., values: _Optional[_Iterable[_Union[ReportedValue, _Mapping]]] = ..., run: _Optional[int] = ..., runs_from: _Optional[int] = ...) -> None: ...

class PushReply(_message.Message):
    __slots__ = ("step", "pull", "left_out")
    STEP_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    step: StepReply
    pull: PullReply
    left_out: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, step: _Optional[_Union[StepReply, _Mapping]] = ..., pull: _Optional[_Union[PullReply, _Mapping]] = ..., left_out: _Optional[_Iterable[int]] = ...) -> None: ...

class AddGradientsRequest(_message.Message):
    __slots__ = ("context", "target", "positions", "gradients", "steps", "optimizer")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    context: ContextId
    target: _values_pb2.Handle
    positions: _containers.RepeatedScalarFieldContainer[int]
    gradients: _values_pb2.Value
    steps: _containers.RepeatedScalarFieldContainer[int]
    optimizer: _values_pb2.Handle
    def __init__(self, context: _Optional[_Union[ContextId, _Mapping]] = ..., target: _Optional[_Union[_values_pb2.Handle, _Mapping]] = ..., positions: _Optional[_Iterable[int]] = ..., gradients: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., steps: _Optional[_Iterable[int]] = ..., optimizer: _Optional[_Union[_values_pb2.Handle, _Mapping]] = ...) -> None: ...

class AddGradientsReply(_message.Message):
    __slots__ = ("left_out", "not_stepped")
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    NOT_STEPPED_FIELD_NUMBER: _ClassVar[int]
    left_out: _containers.RepeatedScalarFieldContainer[int]
    not_stepped: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, left_out: _Optional[_Iterable[int]] = ..., not_stepped: _Optional[_Iterable[int]] = ...) -> None: ...

class StateRequest(_message.Message):
    __slots__ = ("target",)
    TARGET_FIELD_NUMBER: _ClassVar[int]
    target: _values_pb2.Handle
    def __init__(self, target: _Optional[_Union[_values_pb2.Handle, _Mapping]] = ...) -> None: ...

class StateReply(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: _values_pb2.Value
    def __init__(self, state: _Optional[_Union[_values_pb2.Value, _Mapping]] = ...) -> None: ...

class LoadStateRequest(_message.Message):
    __slots__ = ("target", "state", "strict")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    target: _values_pb2.Handle
    state: _values_pb2.Value
    strict: bool
    def __init__(self, target: _Optional[_Union[_values_pb2.Handle, _Mapping]] = ..., state: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., strict: bool = ...) -> None: ...

class LoadStateReply(_message.Message):
    __slots__ = ("missing_keys", "unexpected_keys")
    MISSING_KEYS_FIELD_NUMBER: _ClassVar[int]
    UNEXPECTED_KEYS_FIELD_NUMBER: _ClassVar[int]
    missing_keys: _containers.RepeatedScalarFieldContainer[str]
    unexpected_keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, missing_keys: _Optional[_Iterable[str]] = ..., unexpected_keys: _Optional[_Iterable[str]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("name", "address", "id", "away", "is_owner")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    AWAY_FIELD_NUMBER: _ClassVar[int]
    IS_OWNER_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    id: int
    away: bool
    is_owner: bool
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., id: _Optional[int] = ..., away: bool = ..., is_owner: bool = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("name", "address", "id", "world_size", "wait_seconds", "is_owner", "incarnation", "earlier")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    IS_OWNER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    id: int
    world_size: int
    wait_seconds: float
    is_owner: bool
    incarnation: str
    earlier: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., id: _Optional[int] = ..., world_size: _Optional[int] = ..., wait_seconds: _Optional[float] = ..., is_owner: bool = ..., incarnation: _Optional[str] = ..., earlier: _Optional[_Iterable[str]] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ("member", "members", "missing")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    member: Member
    members: _containers.RepeatedCompositeFieldContainer[Member]
    missing: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., missing: _Optional[_Iterable[str]] = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("name", "id", "wait_seconds")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: int
    wait_seconds: float
    def __init__(self, name: _Optional[str] = ..., id: _Optional[int] = ..., wait_seconds: _Optional[float] = ...) -> None: ...

class LookupReply(_message.Message):
    __slots__ = ("member",)
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    member: Member
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ...) -> None: ...

class MembersRequest(_message.Message):
    __slots__ = ("at_least", "wait_seconds", "owners_at_least")
    AT_LEAST_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    OWNERS_AT_LEAST_FIELD_NUMBER: _ClassVar[int]
    at_least: int
    wait_seconds: float
    owners_at_least: int
    def __init__(self, at_least: _Optional[int] = ..., wait_seconds: _Optional[float] = ..., owners_at_least: _Optional[int] = ...) -> None: ...

class MembersReply(_message.Message):
    __slots__ = ("members",)
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class RendezvousRequest(_message.Message):
    __slots__ = ("key", "name", "names", "wait_seconds", "value", "stays", "again", "arrival", "leaving")
    KEY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    STAYS_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    key: str
    name: str
    names: _containers.RepeatedScalarFieldContainer[str]
    wait_seconds: float
    value: _values_pb2.Value
    stays: bool
    again: bool
    arrival: int
    leaving: bool
    def __init__(self, key: _Optional[str] = ..., name: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., wait_seconds: _Optional[float] = ..., value: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., stays: bool = ..., again: bool = ..., arrival: _Optional[int] = ..., leaving: bool = ...) -> None: ...

class RendezvousReply(_message.Message):
    __slots__ = ("missing", "absent", "names", "values")
    MISSING_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    missing: _containers.RepeatedScalarFieldContainer[str]
    absent: _containers.RepeatedScalarFieldContainer[str]
    names: _containers.RepeatedScalarFieldContainer[str]
    values: _values_pb2.Value
    def __init__(self, missing: _Optional[_Iterable[str]] = ..., absent: _Optional[_Iterable[str]] = ..., names: _Optional[_Iterable[str]] = ..., values: _Optional[_Union[_values_pb2.Value, _Mapping]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("most", "events", "events_after", "without_objects")
    MOST_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_AFTER_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    most: int
    events: int
    events_after: int
    without_objects: bool
    def __init__(self, most: _Optional[int] = ..., events: _Optional[int] = ..., events_after: _Optional[int] = ..., without_objects: bool = ...) -> None: ...

class ObjectStatus(_message.Message):
    __slots__ = ("name", "class_name", "parameters", "bytes", "references", "snapshot")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    name: str
    class_name: str
    parameters: int
    bytes: int
    references: int
    snapshot: str
    def __init__(self, name: _Optional[str] = ..., class_name: _Optional[str] = ..., parameters: _Optional[int] = ..., bytes: _Optional[int] = ..., references: _Optional[int] = ..., snapshot: _Optional[str] = ...) -> None: ...

class OptimizerStatus(_message.Message):
    __slots__ = ("name", "class_name", "version", "parameters", "policy", "members", "waiting_for", "lr", "steps_per_second", "staleness_p50", "staleness_p99", "owners", "durable_version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    LR_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    STALENESS_P50_FIELD_NUMBER: _ClassVar[int]
    STALENESS_P99_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    DURABLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    class_name: str
    version: int
    parameters: int
    policy: str
    members: int
    waiting_for: _containers.RepeatedScalarFieldContainer[str]
    lr: _containers.RepeatedScalarFieldContainer[float]
    steps_per_second: float
    staleness_p50: int
    staleness_p99: int
    owners: _containers.RepeatedScalarFieldContainer[str]
    durable_version: int
    def __init__(self, name: _Optional[str] = ..., class_name: _Optional[str] = ..., version: _Optional[int] = ..., parameters: _Optional[int] = ..., policy: _Optional[str] = ..., members: _Optional[int] = ..., waiting_for: _Optional[_Iterable[str]] = ..., lr: _Optional[_Iterable[float]] = ..., steps_per_second: _Optional[float] = ..., staleness_p50: _Optional[int] = ..., staleness_p99: _Optional[int] = ..., owners: _Optional[_Iterable[str]] = ..., durable_version: _Optional[int] = ...) -> None: ...

class LogStatus(_message.Message):
    __slots__ = ("mode", "state", "why", "position", "synced", "unsynced_records", "unsynced_bytes", "unsynced_seconds", "bytes", "checkpoint_bytes")
    MODE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SYNCED_FIELD_NUMBER: _ClassVar[int]
    UNSYNCED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    UNSYNCED_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNSYNCED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_BYTES_FIELD_NUMBER: _ClassVar[int]
    mode: str
    state: str
    why: str
    position: int
    synced: int
    unsynced_records: int
    unsynced_bytes: int
    unsynced_seconds: float
    bytes: int
    checkpoint_bytes: int
    def __init__(self, mode: _Optional[str] = ..., state: _Optional[str] = ..., why: _Optional[str] = ..., position: _Optional[int] = ..., synced: _Optional[int] = ..., unsynced_records: _Optional[int] = ..., unsynced_bytes: _Optional[int] = ..., unsynced_seconds: _Optional[float] = ..., bytes: _Optional[int] = ..., checkpoint_bytes: _Optional[int] = ...) -> None: ...

class TableStatus(_message.Message):
    __slots__ = ("name", "rows", "bytes", "dim", "updates", "looked_up", "added", "refused", "missing", "loaded", "expired", "evicted", "removed", "gradients", "updated", "late")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    LOOKED_UP_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    UPDATED_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows: int
    bytes: int
    dim: int
    updates: int
    looked_up: int
    added: int
    refused: int
    missing: int
    loaded: int
    expired: int
    evicted: int
    removed: int
    gradients: int
    updated: int
    late: int
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., dim: _Optional[int] = ..., updates: _Optional[int] = ..., looked_up: _Optional[int] = ..., added: _Optional[int] = ..., refused: _Optional[int] = ..., missing: _Optional[int] = ..., loaded: _Optional[int] = ..., expired: _Optional[int] = ..., evicted: _Optional[int] = ..., removed: _Optional[int] = ..., gradients: _Optional[int] = ..., updated: _Optional[int] = ..., late: _Optional[int] = ...) -> None: ...

class OperationStatus(_message.Message):
    __slots__ = ("name", "calls", "errors", "seconds", "p50_seconds", "p99_seconds")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    P50_SECONDS_FIELD_NUMBER: _ClassVar[int]
    P99_SECONDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    calls: int
    errors: int
    seconds: float
    p50_seconds: float
    p99_seconds: float
    def __init__(self, name: _Optional[str] = ..., calls: _Optional[int] = ..., errors: _Optional[int] = ..., seconds: _Optional[float] = ..., p50_seconds: _Optional[float] = ..., p99_seconds: _Optional[float] = ...) -> None: ...

class CommunicatorStatus(_message.Message):
    __slots__ = ("name", "size", "members", "open", "waiting_for", "bytes", "ended")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    members: int
    open: int
    waiting_for: _containers.RepeatedScalarFieldContainer[str]
    bytes: int
    ended: str
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., members: _Optional[int] = ..., open: _Optional[int] = ..., waiting_for: _Optional[_Iterable[str]] = ..., bytes: _Optional[int] = ..., ended: _Optional[str] = ...) -> None: ...

class MemoryStatus(_message.Message):
    __slots__ = ("kind", "bytes", "budget_bytes", "largest_bytes")
    KIND_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    LARGEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    kind: str
    bytes: int
    budget_bytes: int
    largest_bytes: int
    def __init__(self, kind: _Optional[str] = ..., bytes: _Optional[int] = ..., budget_bytes: _Optional[int] = ..., largest_bytes: _Optional[int] = ...) -> None: ...

class QuotaStatus(_message.Message):
    __slots__ = ("section", "name", "used", "quota")
    SECTION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    section: str
    name: str
    used: float
    quota: float
    def __init__(self, section: _Optional[str] = ..., name: _Optional[str] = ..., used: _Optional[float] = ..., quota: _Optional[float] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("number", "time_seconds", "kind", "level", "text", "trainer", "subject", "count", "traceback")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    number: int
    time_seconds: float
    kind: str
    level: str
    text: str
    trainer: str
    subject: str
    count: int
    traceback: str
    def __init__(self, number: _Optional[int] = ..., time_seconds: _Optional[float] = ..., kind: _Optional[str] = ..., level: _Optional[str] = ..., text: _Optional[str] = ..., trainer: _Optional[str] = ..., subject: _Optional[str] = ..., count: _Optional[int] = ..., traceback: _Optional[str] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("owner", "version", "uptime_seconds", "serving", "objects", "optimizers", "parameters", "bytes", "sessions", "connected_sessions", "contexts", "kept_answers", "requests_in_flight", "operations", "calls_per_second", "resident_bytes", "shared_memory_connections", "shared_bytes", "references", "borrowed", "waiting", "members", "threads", "threads_waiting", "threads_lost", "threads_spare", "stalled", "request_bytes", "waiting_bytes", "answer_bytes", "paused_sessions", "context_bytes", "direct_connections", "tables", "time_seconds", "process_id", "host_name", "state", "device", "trainers", "communicators", "memory", "passes", "objects_hosted", "kinds", "communicators_open", "directory", "events", "last_event", "steps_per_second", "optimizers_hosted", "tables_hosted", "members_known", "log", "quotas")
    class KindsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    OWNER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZERS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    KEPT_ANSWERS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    CALLS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    SHARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    BORROWED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    THREADS_WAITING_FIELD_NUMBER: _ClassVar[int]
    THREADS_LOST_FIELD_NUMBER: _ClassVar[int]
    THREADS_SPARE_FIELD_NUMBER: _ClassVar[int]
    STALLED_FIELD_NUMBER: _ClassVar[int]
    REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAITING_BYTES_FIELD_NUMBER: _ClassVar[int]
    ANSWER_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAUSED_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIRECT_CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    TIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    TRAINERS_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATORS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_HOSTED_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATORS_OPEN_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZERS_HOSTED_FIELD_NUMBER: _ClassVar[int]
    TABLES_HOSTED_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    owner: str
    version: str
    uptime_seconds: float
    serving: bool
    objects: _containers.RepeatedCompositeFieldContainer[ObjectStatus]
    optimizers: _containers.RepeatedCompositeFieldContainer[OptimizerStatus]
    parameters: int
    bytes: int
    sessions: int
    connected_sessions: int
    contexts: int
    kept_answers: int
    requests_in_flight: int
    operations: _containers.RepeatedCompositeFieldContainer[OperationStatus]
    calls_per_second: float
    resident_bytes: int
    shared_memory_connections: int
    shared_bytes: int
    references: int
    borrowed: int
    waiting: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    threads: int
    threads_waiting: int
    threads_lost: int
    threads_spare: int
    stalled: bool
    request_bytes: int
    waiting_bytes: int
    answer_bytes: int
    paused_sessions: int
    context_bytes: int
    direct_connections: int
    tables: _containers.RepeatedCompositeFieldContainer[TableStatus]
    time_seconds: float
    process_id: int
    host_name: str
    state: str
    device: str
    trainers: _containers.RepeatedCompositeFieldContainer[SessionInfo]
    communicators: _containers.RepeatedCompositeFieldContainer[CommunicatorStatus]
    memory: _containers.RepeatedCompositeFieldContainer[MemoryStatus]
    passes: _containers.RepeatedCompositeFieldContainer[ContextInfo]
    objects_hosted: int
    kinds: _containers.ScalarMap[str, int]
    communicators_open: int
    directory: str
    events: _containers.RepeatedCompositeFieldContainer[Event]
    last_event: int
    steps_per_second: float
    optimizers_hosted: int
    tables_hosted: int
    members_known: int
    log: LogStatus
    quotas: _containers.RepeatedCompositeFieldContainer[QuotaStatus]
    def __init__(self, owner: _Optional[str] = ..., version: _Optional[str] = ..., uptime_seconds: _Optional[float] = ..., serving: bool = ..., objects: _Optional[_Iterable[_Union[ObjectStatus, _Mapping]]] = ..., optimizers: _Optional[_Iterable[_Union[OptimizerStatus, _Mapping]]] = ..., parameters: _Optional[int] = ..., bytes: _Optional[int] = ..., sessions: _Optional[int] = ..., connected_sessions: _Optional[int] = ..., contexts: _Optional[int] = ..., kept_answers: _Optional[int] = ..., requests_in_flight: _Optional[int] = ..., operations: _Optional[_Iterable[_Union[OperationStatus, _Mapping]]] = ..., calls_per_second: _Optional[float] = ..., resident_bytes: _Optional[int] = ..., shared_memory_connections: _Optional[int] = ..., shared_bytes: _Optional[int] = ..., references: _Optional[int] = ..., borrowed: _Optional[int] = ..., waiting: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., threads: _Optional[int] = ..., threads_waiting: _Optional[int] = ..., threads_lost: _Optional[int] = ..., threads_spare: _Optional[int] = ..., stalled: bool = ..., request_bytes: _Optional[int] = ..., waiting_bytes: _Optional[int] = ..., answer_bytes: _Optional[int] = ..., paused_sessions: _Optional[int] = ..., context_bytes: _Optional[int] = ..., direct_connections: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[TableStatus, _Mapping]]] = ..., time_seconds: _Optional[float] = ..., process_id: _Optional[int] = ..., host_name: _Optional[str] = ..., state: _Optional[str] = ..., device: _Optional[str] = ..., trainers: _Optional[_Iterable[_Union[SessionInfo, _Mapping]]] = ..., communicators: _Optional[_Iterable[_Union[CommunicatorStatus, _Mapping]]] = ..., memory: _Optional[_Iterable[_Union[MemoryStatus, _Mapping]]] = ..., passes: _Optional[_Iterable[_Union[ContextInfo, _Mapping]]] = ..., objects_hosted: _Optional[int] = ..., kinds: _Optional[_Mapping[str, int]] = ..., communicators_open: _Optional[int] = ..., directory: _Optional[str] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., last_event: _Optional[int] = ..., steps_per_second: _Optional[float] = ..., optimizers_hosted: _Optional[int] = ..., tables_hosted: _Optional[int] = ..., members_known: _Optional[int] = ..., log: _Optional[_Union[LogStatus, _Mapping]] = ..., quotas: _Optional[_Iterable[_Union[QuotaStatus, _Mapping]]] = ...) -> None: ...

class SessionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SessionInfo(_message.Message):
    __slots__ = ("id", "transport", "peer", "connected", "away_seconds", "age_seconds", "contexts", "oldest_context_seconds", "requests_in_flight", "request_bytes", "waiting_bytes", "answer_bytes", "references", "context_bytes", "program", "host_name", "process_id", "member", "steps", "steps_per_second", "last_seen_seconds")
    ID_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    AWAY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_CONTEXT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAITING_BYTES_FIELD_NUMBER: _ClassVar[int]
    ANSWER_BYTES_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    id: str
    transport: str
    peer: str
    connected: bool
    away_seconds: float
    age_seconds: float
    contexts: int
    oldest_context_seconds: float
    requests_in_flight: int
    request_bytes: int
    waiting_bytes: int
    answer_bytes: int
    references: int
    context_bytes: int
    program: str
    host_name: str
    process_id: int
    member: str
    steps: int
    steps_per_second: float
    last_seen_seconds: float
    def __init__(self, id: _Optional[str] = ..., transport: _Optional[str] = ..., peer: _Optional[str] = ..., connected: bool = ..., away_seconds: _Optional[float] = ..., age_seconds: _Optional[float] = ..., contexts: _Optional[int] = ..., oldest_context_seconds: _Optional[float] = ..., requests_in_flight: _Optional[int] = ..., request_bytes: _Optional[int] = ..., waiting_bytes: _Optional[int] = ..., answer_bytes: _Optional[int] = ..., references: _Optional[int] = ..., context_bytes: _Optional[int] = ..., program: _Optional[str] = ..., host_name: _Optional[str] = ..., process_id: _Optional[int] = ..., member: _Optional[str] = ..., steps: _Optional[int] = ..., steps_per_second: _Optional[float] = ..., last_seen_seconds: _Optional[float] = ...) -> None: ...

class ContextInfo(_message.Message):
    __slots__ = ("id", "age_seconds", "unused_seconds", "requests_in_flight", "sessions")
    ID_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UNUSED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    id: str
    age_seconds: float
    unused_seconds: float
    requests_in_flight: int
    sessions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., age_seconds: _Optional[float] = ..., unused_seconds: _Optional[float] = ..., requests_in_flight: _Optional[int] = ..., sessions: _Optional[_Iterable[str]] = ...) -> None: ...

class SessionsReply(_message.Message):
    __slots__ = ("owner", "sessions", "contexts", "open_contexts")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    OPEN_CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    owner: str
    sessions: _containers.RepeatedCompositeFieldContainer[SessionInfo]
    contexts: _containers.RepeatedCompositeFieldContainer[ContextInfo]
    open_contexts: int
    def __init__(self, owner: _Optional[str] = ..., sessions: _Optional[_Iterable[_Union[SessionInfo, _Mapping]]] = ..., contexts: _Optional[_Iterable[_Union[ContextInfo, _Mapping]]] = ..., open_contexts: _Optional[int] = ...) -> None: ...

class EvictRequest(_message.Message):
    __slots__ = ("session", "context", "unused_seconds")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    UNUSED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    session: str
    context: str
    unused_seconds: float
    def __init__(self, session: _Optional[str] = ..., context: _Optional[str] = ..., unused_seconds: _Optional[float] = ...) -> None: ...

class EvictReply(_message.Message):
    __slots__ = ("sessions", "contexts")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedScalarFieldContainer[str]
    contexts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, sessions: _Optional[_Iterable[str]] = ..., contexts: _Optional[_Iterable[str]] = ...) -> None: ...

class CheckpointRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckpointReply(_message.Message):
    __slots__ = ("owner", "folder", "objects", "bytes", "seconds", "held_seconds", "left_out")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    HELD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    owner: str
    folder: str
    objects: int
    bytes: int
    seconds: float
    held_seconds: float
    left_out: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, owner: _Optional[str] = ..., folder: _Optional[str] = ..., objects: _Optional[int] = ..., bytes: _Optional[int] = ..., seconds: _Optional[float] = ..., held_seconds: _Optional[float] = ..., left_out: _Optional[_Iterable[str]] = ...) -> None: ...

class SnapshotPart(_message.Message):
    __slots__ = ("owner", "name")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    owner: str
    name: str
    def __init__(self, owner: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ("name", "objects", "parts", "remove", "id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    objects: _containers.RepeatedCompositeFieldContainer[_values_pb2.Handle]
    parts: _containers.RepeatedCompositeFieldContainer[SnapshotPart]
    remove: bool
    id: bytes
    def __init__(self, name: _Optional[str] = ..., objects: _Optional[_Iterable[_Union[_values_pb2.Handle, _Mapping]]] = ..., parts: _Optional[_Iterable[_Union[SnapshotPart, _Mapping]]] = ..., remove: bool = ..., id: _Optional[bytes] = ...) -> None: ...

class SnapshotReply(_message.Message):
    __slots__ = ("objects", "parts", "id")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[ObjectInfo]
    parts: _containers.RepeatedCompositeFieldContainer[SnapshotPart]
    id: bytes
    def __init__(self, objects: _Optional[_Iterable[_Union[ObjectInfo, _Mapping]]] = ..., parts: _Optional[_Iterable[_Union[SnapshotPart, _Mapping]]] = ..., id: _Optional[bytes] = ...) -> None: ...

class DurableRequest(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: int
    def __init__(self, position: _Optional[int] = ...) -> None: ...

class DurableReply(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: int
    def __init__(self, position: _Optional[int] = ...) -> None: ...

class JoinCommunicatorRequest(_message.Message):
    __slots__ = ("member", "name", "size", "rank", "wait_seconds", "patience_seconds")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    member: int
    name: str
    size: int
    rank: int
    wait_seconds: float
    patience_seconds: float
    def __init__(self, member: _Optional[int] = ..., name: _Optional[str] = ..., size: _Optional[int] = ..., rank: _Optional[int] = ..., wait_seconds: _Optional[float] = ..., patience_seconds: _Optional[float] = ...) -> None: ...

class JoinCommunicatorReply(_message.Message):
    __slots__ = ("rank",)
    RANK_FIELD_NUMBER: _ClassVar[int]
    rank: int
    def __init__(self, rank: _Optional[int] = ...) -> None: ...

class LeaveCommunicatorRequest(_message.Message):
    __slots__ = ("member", "why")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    member: int
    why: str
    def __init__(self, member: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class LeaveCommunicatorReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Piece(_message.Message):
    __slots__ = ("value", "offset", "nbytes")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    value: _values_pb2.Value
    offset: int
    nbytes: int
    def __init__(self, value: _Optional[_Union[_values_pb2.Value, _Mapping]] = ..., offset: _Optional[int] = ..., nbytes: _Optional[int] = ...) -> None: ...

class CollectiveRequest(_message.Message):
    __slots__ = ("member", "number", "kind", "root", "reduction", "pieces", "wait_seconds")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    REDUCTION_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    member: int
    number: int
    kind: CollectiveKind
    root: int
    reduction: Reduction
    pieces: _containers.RepeatedCompositeFieldContainer[Piece]
    wait_seconds: float
    def __init__(self, member: _Optional[int] = ..., number: _Optional[int] = ..., kind: _Optional[_Union[CollectiveKind, str]] = ..., root: _Optional[int] = ..., reduction: _Optional[_Union[Reduction, str]] = ..., pieces: _Optional[_Iterable[_Union[Piece, _Mapping]]] = ..., wait_seconds: _Optional[float] = ...) -> None: ...

class CollectiveReply(_message.Message):
    __slots__ = ("pieces", "reduced")
    PIECES_FIELD_NUMBER: _ClassVar[int]
    REDUCED_FIELD_NUMBER: _ClassVar[int]
    pieces: _containers.RepeatedCompositeFieldContainer[Piece]
    reduced: _values_pb2.Value
    def __init__(self, pieces: _Optional[_Iterable[_Union[Piece, _Mapping]]] = ..., reduced: _Optional[_Union[_values_pb2.Value, _Mapping]] = ...) -> None: ...

class HistoryRequest(_message.Message):
    __slots__ = ("after", "with_curves", "curves")
    class CurvesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    AFTER_FIELD_NUMBER: _ClassVar[int]
    WITH_CURVES_FIELD_NUMBER: _ClassVar[int]
    CURVES_FIELD_NUMBER: _ClassVar[int]
    after: int
    with_curves: bool
    curves: _containers.ScalarMap[int, int]
    def __init__(self, after: _Optional[int] = ..., with_curves: bool = ..., curves: _Optional[_Mapping[int, int]] = ...) -> None: ...

class Curve(_message.Message):
    __slots__ = ("number", "optimizer", "class_name", "name", "seen", "width", "start", "first_version", "last_version", "finite", "not_finite", "mean", "low", "high", "time_seconds")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    FIRST_VERSION_FIELD_NUMBER: _ClassVar[int]
    LAST_VERSION_FIELD_NUMBER: _ClassVar[int]
    FINITE_FIELD_NUMBER: _ClassVar[int]
    NOT_FINITE_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    TIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    number: int
    optimizer: str
    class_name: str
    name: str
    seen: int
    width: int
    start: int
    first_version: _containers.RepeatedScalarFieldContainer[int]
    last_version: _containers.RepeatedScalarFieldContainer[int]
    finite: _containers.RepeatedScalarFieldContainer[int]
    not_finite: _containers.RepeatedScalarFieldContainer[int]
    mean: _containers.RepeatedScalarFieldContainer[float]
    low: _containers.RepeatedScalarFieldContainer[float]
    high: _containers.RepeatedScalarFieldContainer[float]
    time_seconds: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, number: _Optional[int] = ..., optimizer: _Optional[str] = ..., class_name: _Optional[str] = ..., name: _Optional[str] = ..., seen: _Optional[int] = ..., width: _Optional[int] = ..., start: _Optional[int] = ..., first_version: _Optional[_Iterable[int]] = ..., last_version: _Optional[_Iterable[int]] = ..., finite: _Optional[_Iterable[int]] = ..., not_finite: _Optional[_Iterable[int]] = ..., mean: _Optional[_Iterable[float]] = ..., low: _Optional[_Iterable[float]] = ..., high: _Optional[_Iterable[float]] = ..., time_seconds: _Optional[_Iterable[float]] = ...) -> None: ...

class OperationSample(_message.Message):
    __slots__ = ("name", "errors", "durations")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    DURATIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    errors: int
    durations: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., errors: _Optional[int] = ..., durations: _Optional[_Iterable[int]] = ...) -> None: ...

class Sample(_message.Message):
    __slots__ = ("number", "age_seconds", "seconds", "steps", "staleness", "operations", "received_bytes", "sent_bytes", "connected_sessions", "requests_in_flight", "resident_bytes", "parameter_bytes", "table_bytes", "request_bytes", "answer_bytes", "context_bytes", "trainer_steps")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_BYTES_FIELD_NUMBER: _ClassVar[int]
    TABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    ANSWER_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRAINER_STEPS_FIELD_NUMBER: _ClassVar[int]
    number: int
    age_seconds: float
    seconds: float
    steps: int
    staleness: _containers.RepeatedScalarFieldContainer[int]
    operations: _containers.RepeatedCompositeFieldContainer[OperationSample]
    received_bytes: int
    sent_bytes: int
    connected_sessions: int
    requests_in_flight: int
    resident_bytes: int
    parameter_bytes: int
    table_bytes: int
    request_bytes: int
    answer_bytes: int
    context_bytes: int
    trainer_steps: int
    def __init__(self, number: _Optional[int] = ..., age_seconds: _Optional[float] = ..., seconds: _Optional[float] = ..., steps: _Optional[int] = ..., staleness: _Optional[_Iterable[int]] = ..., operations: _Optional[_Iterable[_Union[OperationSample, _Mapping]]] = ..., received_bytes: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., connected_sessions: _Optional[int] = ..., requests_in_flight: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., parameter_bytes: _Optional[int] = ..., table_bytes: _Optional[int] = ..., request_bytes: _Optional[int] = ..., answer_bytes: _Optional[int] = ..., context_bytes: _Optional[int] = ..., trainer_steps: _Optional[int] = ...) -> None: ...

class HistoryReply(_message.Message):
    __slots__ = ("owner", "incarnation", "state", "version", "uptime_seconds", "samples", "memory_bytes", "max_owner_bytes", "max_context_bytes", "objects", "curves", "curve_numbers", "ended_curves", "curve_values_left_out")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_OWNER_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    CURVES_FIELD_NUMBER: _ClassVar[int]
    CURVE_NUMBERS_FIELD_NUMBER: _ClassVar[int]
    ENDED_CURVES_FIELD_NUMBER: _ClassVar[int]
    CURVE_VALUES_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    owner: str
    incarnation: str
    state: str
    version: str
    uptime_seconds: float
    samples: _containers.RepeatedCompositeFieldContainer[Sample]
    memory_bytes: int
    max_owner_bytes: int
    max_context_bytes: int
    objects: int
    curves: _containers.RepeatedCompositeFieldContainer[Curve]
    curve_numbers: _containers.RepeatedScalarFieldContainer[int]
    ended_curves: _containers.RepeatedScalarFieldContainer[int]
    curve_values_left_out: int
    def __init__(self, owner: _Optional[str] = ..., incarnation: _Optional[str] = ..., state: _Optional[str] = ..., version: _Optional[str] = ..., uptime_seconds: _Optional[float] = ..., samples: _Optional[_Iterable[_Union[Sample, _Mapping]]] = ..., memory_bytes: _Optional[int] = ..., max_owner_bytes: _Optional[int] = ..., max_context_bytes: _Optional[int] = ..., objects: _Optional[int] = ..., curves: _Optional[_Iterable[_Union[Curve, _Mapping]]] = ..., curve_numbers: _Optional[_Iterable[int]] = ..., ended_curves: _Optional[_Iterable[int]] = ..., curve_values_left_out: _Optional[int] = ...) -> None: ...

class MoveContents(_message.Message):
    __slots__ = ("records", "nbytes", "blocks", "bytes")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    nbytes: int
    blocks: _containers.RepeatedScalarFieldContainer[int]
    bytes: _values_pb2.Value
    def __init__(self, records: _Optional[bytes] = ..., nbytes: _Optional[int] = ..., blocks: _Optional[_Iterable[int]] = ..., bytes: _Optional[_Union[_values_pb2.Value, _Mapping]] = ...) -> None: ...

class MoveRequest(_message.Message):
    __slots__ = ("action", "move", "names", "owner", "seconds", "again", "lose", "contents", "object_id")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    LOSE_FIELD_NUMBER: _ClassVar[int]
    CONTENTS_FIELD_NUMBER: _ClassVar[int]
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    action: MoveAction
    move: str
    names: _containers.RepeatedScalarFieldContainer[str]
    owner: str
    seconds: float
    again: bool
    lose: bool
    contents: MoveContents
    object_id: str
    def __init__(self, action: _Optional[_Union[MoveAction, str]] = ..., move: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., owner: _Optional[str] = ..., seconds: _Optional[float] = ..., again: bool = ..., lose: bool = ..., contents: _Optional[_Union[MoveContents, _Mapping]] = ..., object_id: _Optional[str] = ...) -> None: ...

class MoveGroup(_message.Message):
    __slots__ = ("names", "nbytes", "refusal")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    nbytes: int
    refusal: str
    def __init__(self, names: _Optional[_Iterable[str]] = ..., nbytes: _Optional[int] = ..., refusal: _Optional[str] = ...) -> None: ...

class MoveReply(_message.Message):
    __slots__ = ("groups", "move", "contents", "left", "done", "objects")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    CONTENTS_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[MoveGroup]
    move: str
    contents: MoveContents
    left: int
    done: bool
    objects: _containers.RepeatedCompositeFieldContainer[ObjectInfo]
    def __init__(self, groups: _Optional[_Iterable[_Union[MoveGroup, _Mapping]]] = ..., move: _Optional[str] = ..., contents: _Optional[_Union[MoveContents, _Mapping]] = ..., left: _Optional[int] = ..., done: bool = ..., objects: _Optional[_Iterable[_Union[ObjectInfo, _Mapping]]] = ...) -> None: ...
