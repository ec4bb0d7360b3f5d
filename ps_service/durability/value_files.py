"""Encodes values into the files of a checkpoint, with tensors under readable names, and decodes them.

The state of a table goes block by block: memory never holds its rows a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from ps_service.durability.tensors import is_native
from ps_wire.codec.payload import Buffer, PayloadReader, PayloadWriter
from ps_wire.codec.records import codec_of
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.errors import InvalidArgumentError
from ps_wire.tables.names import BLOCKS as _BLOCKS

if TYPE_CHECKING:
    from ps_service.durability.tensors import TensorReader
    from ps_wire.v1.values_pb2 import Value

BLOCKS: Final = _BLOCKS
"""The key under which a table's `state_dict` has its rows, as an iterable of blocks."""


class Tensors(Protocol):
    """Takes the tensors of a checkpoint."""

    def add(self, name: str, tensor: torch.Tensor) -> str:
        """Adds a native tensor. Returns the name under which it is found again."""


def store(value: Any, message: Value, names: Any, tensors: Tensors, prefix: str) -> None:
    """Encodes a value into a message, and its tensors into files, whose names (prefix and path) go into `names`.

    Raises `InvalidArgumentError`, with nothing stored, if the value holds something that cannot be encoded.
    """
    # A value that cannot be encoded fails here, before any part of it is stored.
    Encoder(_Nowhere()).encode(value)
    payload = _Storing(tensors, names, prefix, list(_paths(value)))
    encoder = Encoder(payload)
    payload.encoder = encoder
    encoder.encode_into(message, value)
    # The two refer to each other, and the encoder to all tensors.
    payload.encoder = None


def load(message: Value, names: Sequence[str], tensors: TensorReader) -> Any:
    """Decodes a stored value. Raises `InvalidArgumentError` if a class is not registered, or a tensor is missing."""
    return Decoder(_Stored(tensors, names)).decode(message)


def store_table(state: Mapping[str, Any], message: Value, names: Any, tensors: Tensors, prefix: str) -> None:
    """Stores the result of a table's `state_dict`. Each block is asked for when its turn comes."""
    message.dict.SetInParent()
    for key, value in state.items():
        item = message.dict.items.add()
        item.key.text = key
        if key == BLOCKS:
            item.value.list.SetInParent()
            for number, block in enumerate(value):
                store(block, item.value.list.items.add(), names, tensors, f"{prefix}/{key}.{number}")
        else:
            store(value, item.value, names, tensors, f"{prefix}/{key}")


def load_table(message: Value, names: Sequence[str], tensors: TensorReader) -> dict[str, Any]:
    """Decodes the state of a table. Its blocks are an iterator, which reads one at a time, and raises as `load`."""
    state: dict[str, Any] = {}
    for item in message.dict.items:
        if item.key.text == BLOCKS:
            state[BLOCKS] = (load(block, names, tensors) for block in item.value.list.items)
        else:
            state[item.key.text] = load(item.value, names, tensors)
    return state


def table_columns(
    message: Value, names: Sequence[str], tensors: TensorReader
) -> Iterator[dict[str, Callable[[], torch.Tensor]]]:
    """For each block of a table's state, functions that read one of its columns, by name. These raise as `load`."""
    for item in message.dict.items:
        if item.key.text == BLOCKS:
            for block in item.value.list.items:
                yield {column.key.text: partial(load, column.value, names, tensors) for column in block.dict.items}


class FileStorage:
    """Stores the tensors of records in the files of a checkpoint."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors

    def store(self, value: Any, message: Value, names: Any, prefix: str) -> None:
        """As `Storage.store`."""
        store(value, message, names, self._tensors, prefix)

    def store_table(self, state: Mapping[str, Any], message: Value, names: Any, prefix: str) -> None:
        """As `Storage.store_table`."""
        store_table(state, message, names, self._tensors, prefix)

    def add(self, name: str, content: Buffer) -> str:
        """As `Storage.add`."""
        return self._tensors.add(name, torch.from_numpy(content))


class FileSource:
    """Reads what `FileStorage` has stored."""

    def __init__(self, tensors: TensorReader) -> None:
        self._tensors = tensors

    def load(self, message: Value, names: Sequence[str]) -> Any:
        """As `Source.load`."""
        return load(message, names, self._tensors)

    def load_table(self, message: Value, names: Sequence[str]) -> dict[str, Any]:
        """As `Source.load_table`."""
        return load_table(message, names, self._tensors)

    def find(self, name: str) -> Buffer | None:
        """As `Source.find`."""
        found: Buffer | None = self._tensors.get(name).numpy() if name else None
        return found


class _Nowhere(PayloadWriter):
    """A payload that discards its bytes, to test whether a value can be encoded."""

    __slots__ = ()

    def add(self, chunk: memoryview) -> int:
        return 0


class _Storing(PayloadWriter):
    """A payload that stores each buffer as a tensor of its own; an offset is the tensor's index."""

    __slots__ = ("_names", "_paths", "_prefix", "_tensors", "encoder")

    def __init__(self, tensors: Tensors, names: Any, prefix: str, paths: list[str]) -> None:
        super().__init__()
        self._tensors = tensors
        self._names = names
        self._prefix = prefix
        self._paths = paths
        self.encoder: Encoder | None = None

    def add(self, chunk: memoryview) -> int:
        assert self.encoder is not None
        seen = self.encoder.tensors
        tensor, path = seen[-1], self._paths[len(seen) - 1]
        if not is_native(tensor):
            # All or some of its bytes, as the codec writes them.
            tensor = torch.frombuffer(bytearray(chunk), dtype=torch.uint8)
        elif not tensor.is_contiguous():
            # The elements in the order of memory; the message has the strides.
            tensor = torch.frombuffer(bytearray(chunk), dtype=tensor.dtype)
        self._names.append(self._tensors.add(f"{self._prefix}/{path}", tensor))
        return len(self._names) - 1


class _Stored(PayloadReader):
    """Reads what `_Storing` wrote."""

    __slots__ = ("_names", "_tensors")

    def __init__(self, tensors: TensorReader, names: Sequence[str]) -> None:
        super().__init__()
        self._tensors = tensors
        self._names = names

    def take(self, offset: int, nbytes: int) -> Buffer:
        if offset >= len(self._names):
            raise InvalidArgumentError(f"the checkpoint names only {len(self._names)} tensors of a value that has more")
        found: Buffer = self._tensors.get(self._names[offset]).reshape(-1).view(torch.uint8).numpy()
        if len(found) != nbytes:
            raise InvalidArgumentError(f"tensor {self._names[offset]!r} has {len(found)} bytes instead of {nbytes}")
        # The result must be aligned, and must not be memory of the file.
        return found.copy()


def _paths(value: Any, path: str = "") -> Iterator[str]:
    """The paths of the tensors in a value, in the order in which the codec encodes them."""
    if isinstance(value, torch.Tensor):
        yield path or "value"
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from _paths(item, _joined(path, position))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _paths(key, _joined(path, "key"))
            yield from _paths(item, _joined(path, key))
    elif isinstance(value, slice):
        yield from _paths((value.start, value.stop, value.step), path)
    elif (codec := codec_of(type(value))) is not None:
        yield from _paths(codec.encode(value), path)


def _joined(path: str, key: Any) -> str:
    name = str(key) if isinstance(key, (str, int)) else type(key).__name__
    return f"{path}.{name}" if path else name
