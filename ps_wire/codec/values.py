"""Encodes Python values of a closed set of types as messages, and decodes them. Nothing is pickled or evaluated."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from ps_wire.codec import dtypes, tensors
from ps_wire.codec.names import NAMED, full_name, name_of
from ps_wire.codec.records import codec_named, codec_of
from ps_wire.errors import InvalidArgumentError, TooLargeError
from ps_wire.limits import MAX_DEPTH
from ps_wire.numbers import INT64
from ps_wire.refs import Ref
from ps_wire.v1.values_pb2 import Handle, TableName, Value

if TYPE_CHECKING:
    from ps_wire.codec.payload import PayloadReader, PayloadWriter

_PLAIN: Final = frozenset((list, tuple))
_SCALARS: Final = frozenset((bool, int, float, str, bytes))


class Instead(NamedTuple):
    """A value to send in the place of one of another type."""

    value: Any


class Encoder:
    """Turns values into messages. The bytes of tensors go into the payload, or without one into the messages.

    `on_other` returns what to send in the place of a value of another type: a handle, a table, a value, or the position
    of a result of an earlier call; None if it cannot be sent. With `once`, a tensor that occurs several times is sent
    once: one `Decoder`, also with `once`, then has to read all messages, in their order. `tensors` are in the order in
    which the receiver decodes them.
    """

    def __init__(
        self,
        payload: PayloadWriter | None,
        on_other: Callable[[Any], Handle | TableName | Instead | int | None] | None = None,
        once: bool = False,
    ) -> None:
        self._payload = payload
        self._on_other = on_other
        self.tensors: list[torch.Tensor] = []
        # By `id()`, their positions in that list, which keeps them alive.
        self._positions: dict[int, int] | None = {} if once else None

    def encode(self, value: Any) -> Value:
        """The message for a value, or an `InvalidArgumentError`; a `TooLargeError` if containers are too deep."""
        message = Value()
        self.encode_into(message, value)
        return message

    def encode_into(self, message: Value, value: Any, depth: int = 0) -> None:
        """Like `encode`, for a message that is part of another, inside `depth` containers."""
        if value is None:
            message.none.SetInParent()
        elif isinstance(value, torch.Tensor):
            if self._positions is not None:
                new = len(self.tensors)
                position = self._positions.setdefault(id(value), new)
                if position != new:
                    message.same_tensor = position
                    return
            self.tensors.append(value)
            if value.layout is torch.strided:
                try:
                    tensors.pack(value, message.tensor, self._payload)
                except (RuntimeError, TypeError) as error:
                    raise tensors.without_bytes(value) or error from None
            elif value.layout is torch.sparse_coo:
                tensors.pack_sparse(value, message.sparse, self._payload)
            else:
                raise InvalidArgumentError(
                    f"a tensor of layout {value.layout} cannot be sent; make it dense or COO first"
                )
        elif isinstance(value, Ref):
            message.handle.CopyFrom(value.to_message())
        elif isinstance(value, (list, tuple)) and (type(value) in _PLAIN or codec_of(type(value)) is None):
            # torch.Size, and NamedTuples that are not registered, are sent as plain tuples.
            sequence = message.list if isinstance(value, list) else message.tuple
            sequence.SetInParent()
            if depth >= MAX_DEPTH:
                raise _too_deep()
            for item in value:
                self.encode_into(sequence.items.add(), item, depth + 1)
        elif isinstance(value, dict) and (type(value) is dict or codec_of(type(value)) is None):
            message.dict.SetInParent()
            if depth >= MAX_DEPTH:
                raise _too_deep()
            for key, item in value.items():
                entry = message.dict.items.add()
                self.encode_into(entry.key, key, depth + 1)
                self.encode_into(entry.value, item, depth + 1)
        else:
            self._scalar(message, value, depth)

    def _scalar(self, message: Value, value: Any, depth: int) -> None:
        # A member of an IntEnum is an int as well.
        codec = None if type(value) in _SCALARS else codec_of(type(value))
        if codec is not None:
            if depth >= MAX_DEPTH:
                raise _too_deep()
            message.record.class_name = codec.name
            self.encode_into(message.record.state, codec.encode(value), depth + 1)
            return
        match value:
            case bool() | np.bool_():
                message.boolean = bool(value)
            case int() | np.integer():
                number = int(value)
                if number in INT64:
                    message.integer = number
                else:
                    message.big_integer = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
            case float() | np.floating():
                message.floating = float(value)
            case str():
                try:
                    message.text = value
                except UnicodeEncodeError:
                    raise InvalidArgumentError(
                        f"{value!r} cannot be sent: it has no form in UTF-8; send bytes"
                    ) from None
            case bytes() | bytearray():
                message.binary = bytes(value)
            case torch.dtype():
                message.dtype = dtypes.to_wire(value)
            case torch.device():
                message.device = str(value)
            case slice():
                if depth >= MAX_DEPTH:
                    raise _too_deep()
                for name in ("start", "stop", "step"):
                    self.encode_into(getattr(message.slice, name), getattr(value, name), depth + 1)
            case _:
                self._other(message, value, depth)

    def _other(self, message: Value, value: Any, depth: int) -> None:
        if isinstance(value, NAMED):
            message.name = name_of(value)
            return
        instead = self._on_other(value) if self._on_other is not None else None
        if instead is None:
            refusal = f"a {full_name(type(value))} cannot be sent"
            if isinstance(value, torch._C.Future):
                raise InvalidArgumentError(
                    f"Can not pickle torch.futures.Future: {refusal}; wait for it and send its result, or return it "
                    "from an @async_execution function"
                )
            advice = getattr(type(value), "instead_of_sending", None)
            if isinstance(advice, str):
                raise InvalidArgumentError(f"{refusal}: {advice}")
            raise InvalidArgumentError(
                f"{refusal}; what travels is None, bool, int, float, str, bytes, list, tuple, dict, tensor, numpy "
                "array, handle, dtype, device and slice, functions and classes by name, and instances of classes "
                "decorated with @by_value"
            )
        if isinstance(instead, Instead):
            self.encode_into(message, instead.value, depth)
        elif isinstance(instead, int):
            message.result = instead
        elif isinstance(instead, TableName):
            message.table.CopyFrom(instead)
        else:
            message.handle.CopyFrom(instead)


class Decoder:
    """Turns messages into values. With `once`, a tensor may stand for one before it, also in an earlier message.

    `on_handle` returns the object to use for a handle; without it, that is a `Ref`. `on_tensor` returns the tensor to
    use for one that came, and takes its `requires_grad` at the sender. `on_name` returns a function or class,
    `on_result` the value of a result by its position, and `on_table` what looks up in a table; without them, names,
    results and tables are refused.
    """

    def __init__(
        self,
        payload: PayloadReader,
        on_handle: Callable[[Handle], Any] | None = None,
        on_tensor: Callable[[torch.Tensor, bool], torch.Tensor] | None = None,
        on_name: Callable[[str], Any] | None = None,
        on_result: Callable[[int], Any] | None = None,
        once: bool = False,
        on_table: Callable[[TableName], Any] | None = None,
    ) -> None:
        self._payload = payload
        self._on_table = on_table
        self._on_handle = on_handle
        self._on_tensor = on_tensor
        self._on_name = on_name
        self._on_result = on_result
        self._once = once
        self._tensors: list[torch.Tensor] = []
        # Whether the value is inside of one that copies its tensors.
        self._copied = False

    def decode(self, message: Value, depth: int = 0) -> Any:
        """The value of a message that is inside `depth` containers."""
        if depth > MAX_DEPTH:
            raise _too_deep()
        kind = message.WhichOneof("kind")
        match kind:
            case "none":
                return None
            case "tensor" | "sparse":
                sent = getattr(message, kind)
                tensor = (tensors.unpack if kind == "tensor" else tensors.unpack_sparse)(sent, self._payload)
                if self._on_tensor is not None:
                    tensor = self._on_tensor(tensor, sent.requires_grad)
                self._tensors.append(tensor)
                return tensor
            case "list":
                return list(map(self.decode, message.list.items, repeat(depth + 1)))
            case "tuple":
                return tuple(map(self.decode, message.tuple.items, repeat(depth + 1)))
            case "dict":
                return self._dict(message, depth)
            case "integer" | "floating" | "boolean" | "text" | "binary":
                return getattr(message, kind)
            case _:
                return self._rare(message, kind, depth)

    def _same_tensor(self, position: int) -> torch.Tensor:
        if not self._once:
            raise InvalidArgumentError("a tensor that stands for another is sent here, where none may")
        if self._copied:
            # A small message that names a tensor a thousand times must not cost a thousand times the memory.
            raise InvalidArgumentError("a tensor of a module or array stands for another; each has to be sent")
        # Only complete tensors are in the list, and a tensor holds no values: there are no cycles.
        if position >= len(self._tensors):
            raise InvalidArgumentError(f"a tensor stands for tensor {position} of {len(self._tensors)} before it")
        return self._tensors[position]

    def _rare(self, message: Value, kind: str | None, depth: int) -> Any:
        match kind:
            case "big_integer":
                return int.from_bytes(message.big_integer, "little", signed=True)
            case "handle":
                if self._on_handle is not None:
                    return self._on_handle(message.handle)
                return Ref.from_message(message.handle)
            case "dtype":
                return dtypes.from_wire(message.dtype)
            case "device":
                try:
                    return torch.device(message.device)
                except RuntimeError:
                    raise InvalidArgumentError(f"{message.device!r} is not a device") from None
            case "name":
                if self._on_name is None:
                    raise InvalidArgumentError(f"{message.name!r} is named here, where nothing can be called by name")
                return self._on_name(message.name)
            case "result":
                if self._on_result is None:
                    raise InvalidArgumentError(
                        "the value of a result is sent here, where only arguments of calls may be"
                    )
                return self._on_result(message.result)
            case "table":
                if self._on_table is None:
                    raise InvalidArgumentError(
                        f"the table {message.table.name!r} is sent here, where only arguments of calls and "
                        "constructors may be"
                    )
                return self._on_table(message.table)
            case "record":
                return self._record(message, depth)
            case "same_tensor":
                return self._same_tensor(message.same_tensor)
            case "slice":
                parts = message.slice
                return slice(*(self.decode(part, depth + 1) for part in (parts.start, parts.stop, parts.step)))
            case _:
                raise InvalidArgumentError("a value of a kind that is not known here")

    def _record(self, message: Value, depth: int) -> Any:
        codec = codec_named(message.record.class_name)
        outside, self._copied = self._copied, self._copied or codec.copies
        state = self.decode(message.record.state, depth + 1)
        self._copied = outside
        try:
            return codec.decode(state)
        except Exception as error:
            raise InvalidArgumentError(f"no {codec.name} could be made of what arrived: {error!r}") from error

    def _dict(self, message: Value, depth: int) -> dict[Any, Any]:
        result = {}
        for item in message.dict.items:
            key = self.decode(item.key, depth + 1)
            try:
                result[key] = self.decode(item.value, depth + 1)
            except TypeError:
                raise InvalidArgumentError(f"a {type(key).__name__} cannot be the key of a dict") from None
        return result


def _too_deep() -> TooLargeError:
    return TooLargeError(f"containers are nested more than {MAX_DEPTH} deep")
