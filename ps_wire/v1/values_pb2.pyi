from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[DType]
    DTYPE_FLOAT32: _ClassVar[DType]
    DTYPE_FLOAT64: _ClassVar[DType]
    DTYPE_FLOAT16: _ClassVar[DType]
    DTYPE_BFLOAT16: _ClassVar[DType]
    DTYPE_COMPLEX32: _ClassVar[DType]
    DTYPE_COMPLEX64: _ClassVar[DType]
    DTYPE_COMPLEX128: _ClassVar[DType]
    DTYPE_BOOL: _ClassVar[DType]
    DTYPE_UINT8: _ClassVar[DType]
    DTYPE_INT8: _ClassVar[DType]
    DTYPE_INT16: _ClassVar[DType]
    DTYPE_INT32: _ClassVar[DType]
    DTYPE_INT64: _ClassVar[DType]
    DTYPE_UINT16: _ClassVar[DType]
    DTYPE_UINT32: _ClassVar[DType]
    DTYPE_UINT64: _ClassVar[DType]
    DTYPE_FLOAT8_E4M3FN: _ClassVar[DType]
    DTYPE_FLOAT8_E4M3FNUZ: _ClassVar[DType]
    DTYPE_FLOAT8_E5M2: _ClassVar[DType]
    DTYPE_FLOAT8_E5M2FNUZ: _ClassVar[DType]
    DTYPE_FLOAT8_E8M0FNU: _ClassVar[DType]
    DTYPE_FLOAT4_E2M1FN_X2: _ClassVar[DType]
    DTYPE_QUINT8: _ClassVar[DType]
    DTYPE_QINT8: _ClassVar[DType]
    DTYPE_QINT32: _ClassVar[DType]
    DTYPE_QUINT4X2: _ClassVar[DType]
    DTYPE_QUINT2X4: _ClassVar[DType]
    DTYPE_BITS8: _ClassVar[DType]
    DTYPE_BITS16: _ClassVar[DType]
    DTYPE_BITS1X8: _ClassVar[DType]
    DTYPE_BITS2X4: _ClassVar[DType]
    DTYPE_BITS4X2: _ClassVar[DType]
    DTYPE_INT1: _ClassVar[DType]
    DTYPE_INT2: _ClassVar[DType]
    DTYPE_INT3: _ClassVar[DType]
    DTYPE_INT4: _ClassVar[DType]
    DTYPE_INT5: _ClassVar[DType]
    DTYPE_INT6: _ClassVar[DType]
    DTYPE_INT7: _ClassVar[DType]
    DTYPE_UINT1: _ClassVar[DType]
    DTYPE_UINT2: _ClassVar[DType]
    DTYPE_UINT3: _ClassVar[DType]
    DTYPE_UINT4: _ClassVar[DType]
    DTYPE_UINT5: _ClassVar[DType]
    DTYPE_UINT6: _ClassVar[DType]
    DTYPE_UINT7: _ClassVar[DType]
DTYPE_UNSPECIFIED: DType
DTYPE_FLOAT32: DType
DTYPE_FLOAT64: DType
DTYPE_FLOAT16: DType
DTYPE_BFLOAT16: DType
DTYPE_COMPLEX32: DType
DTYPE_COMPLEX64: DType
DTYPE_COMPLEX128: DType
DTYPE_BOOL: DType
DTYPE_UINT8: DType
DTYPE_INT8: DType
DTYPE_INT16: DType
DTYPE_INT32: DType
DTYPE_INT64: DType
DTYPE_UINT16: DType
DTYPE_UINT32: DType
DTYPE_UINT64: DType
DTYPE_FLOAT8_E4M3FN: DType
DTYPE_FLOAT8_E4M3FNUZ: DType
DTYPE_FLOAT8_E5M2: DType
DTYPE_FLOAT8_E5M2FNUZ: DType
DTYPE_FLOAT8_E8M0FNU: DType
DTYPE_FLOAT4_E2M1FN_X2: DType
DTYPE_QUINT8: DType
DTYPE_QINT8: DType
DTYPE_QINT32: DType
DTYPE_QUINT4X2: DType
DTYPE_QUINT2X4: DType
DTYPE_BITS8: DType
DTYPE_BITS16: DType
DTYPE_BITS1X8: DType
DTYPE_BITS2X4: DType
DTYPE_BITS4X2: DType
DTYPE_INT1: DType
DTYPE_INT2: DType
DTYPE_INT3: DType
DTYPE_INT4: DType
DTYPE_INT5: DType
DTYPE_INT6: DType
DTYPE_INT7: DType
DTYPE_UINT1: DType
DTYPE_UINT2: DType
DTYPE_UINT3: DType
DTYPE_UINT4: DType
DTYPE_UINT5: DType
DTYPE_UINT6: DType
DTYPE_UINT7: DType

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape", "requires_grad", "offset", "nbytes", "strides", "quantizer", "data")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    REQUIRES_GRAD_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    STRIDES_FIELD_NUMBER: _ClassVar[int]
    QUANTIZER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    dtype: DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    requires_grad: bool
    offset: int
    nbytes: int
    strides: _containers.RepeatedScalarFieldContainer[int]
    quantizer: Quantizer
    data: bytes
    def __init__(self, dtype: _Optional[_Union[DType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., requires_grad: bool = ..., offset: _Optional[int] = ..., nbytes: _Optional[int] = ..., strides: _Optional[_Iterable[int]] = ..., quantizer: _Optional[_Union[Quantizer, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Quantizer(_message.Message):
    __slots__ = ("scale", "zero_point")
    SCALE_FIELD_NUMBER: _ClassVar[int]
    ZERO_POINT_FIELD_NUMBER: _ClassVar[int]
    scale: float
    zero_point: int
    def __init__(self, scale: _Optional[float] = ..., zero_point: _Optional[int] = ...) -> None: ...

class SparseTensor(_message.Message):
    __slots__ = ("indices", "values", "shape", "coalesced", "requires_grad")
    INDICES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    COALESCED_FIELD_NUMBER: _ClassVar[int]
    REQUIRES_GRAD_FIELD_NUMBER: _ClassVar[int]
    indices: Tensor
    values: Tensor
    shape: _containers.RepeatedScalarFieldContainer[int]
    coalesced: bool
    requires_grad: bool
    def __init__(self, indices: _Optional[_Union[Tensor, _Mapping]] = ..., values: _Optional[_Union[Tensor, _Mapping]] = ..., shape: _Optional[_Iterable[int]] = ..., coalesced: bool = ..., requires_grad: bool = ...) -> None: ...

class Handle(_message.Message):
    __slots__ = ("owner", "object_id", "parameter", "history")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    owner: str
    object_id: str
    parameter: str
    history: bool
    def __init__(self, owner: _Optional[str] = ..., object_id: _Optional[str] = ..., parameter: _Optional[str] = ..., history: bool = ...) -> None: ...

class Nothing(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Sequence(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Value]
    def __init__(self, items: _Optional[_Iterable[_Union[Value, _Mapping]]] = ...) -> None: ...

class Item(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: Value
    value: Value
    def __init__(self, key: _Optional[_Union[Value, _Mapping]] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class Dict(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Item]
    def __init__(self, items: _Optional[_Iterable[_Union[Item, _Mapping]]] = ...) -> None: ...

class Slice(_message.Message):
    __slots__ = ("start", "stop", "step")
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    start: Value
    stop: Value
    step: Value
    def __init__(self, start: _Optional[_Union[Value, _Mapping]] = ..., stop: _Optional[_Union[Value, _Mapping]] = ..., step: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("class_name", "state")
    CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    class_name: str
    state: Value
    def __init__(self, class_name: _Optional[str] = ..., state: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class TableName(_message.Message):
    __slots__ = ("name", "dim", "dtype", "rows", "owners")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    dim: int
    dtype: DType
    rows: int
    owners: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., dim: _Optional[int] = ..., dtype: _Optional[_Union[DType, str]] = ..., rows: _Optional[int] = ..., owners: _Optional[_Iterable[str]] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ("none", "boolean", "integer", "big_integer", "floating", "text", "binary", "list", "tuple", "dict", "tensor", "sparse", "handle", "dtype", "device", "slice", "name", "record", "result", "same_tensor", "table")
    NONE_FIELD_NUMBER: _ClassVar[int]
    BOOLEAN_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    BIG_INTEGER_FIELD_NUMBER: _ClassVar[int]
    FLOATING_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    BINARY_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    TUPLE_FIELD_NUMBER: _ClassVar[int]
    DICT_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SLICE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    SAME_TENSOR_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    none: Nothing
    boolean: bool
    integer: int
    big_integer: bytes
    floating: float
    text: str
    binary: bytes
    list: Sequence
    tuple: Sequence
    dict: Dict
    tensor: Tensor
    sparse: SparseTensor
    handle: Handle
    dtype: DType
    device: str
    slice: Slice
    name: str
    record: Record
    result: int
    same_tensor: int
    table: TableName
    def __init__(self, none: _Optional[_Union[Nothing, _Mapping]] = ..., boolean: bool = ..., integer: _Optional[int] = ..., big_integer: _Optional[bytes] = ..., floating: _Optional[float] = ..., text: _Optional[str] = ..., binary: _Optional[bytes] = ..., list: _Optional[_Union[Sequence, _Mapping]] = ..., tuple: _Optional[_Union[Sequence, _Mapping]] = ..., dict: _Optional[_Union[Dict, _Mapping]] = ..., tensor: _Optional[_Union[Tensor, _Mapping]] = ..., sparse: _Optional[_Union[SparseTensor, _Mapping]] = ..., handle: _Optional[_Union[Handle, _Mapping]] = ..., dtype: _Optional[_Union[DType, str]] = ..., device: _Optional[str] = ..., slice: _Optional[_Union[Slice, _Mapping]] = ..., name: _Optional[str] = ..., record: _Optional[_Union[Record, _Mapping]] = ..., result: _Optional[int] = ..., same_tensor: _Optional[int] = ..., table: _Optional[_Union[TableName, _Mapping]] = ...) -> None: ...
