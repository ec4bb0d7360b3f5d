"""States: values on their way to the files of a checkpoint and back. Their tensors stand there under readable names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ps_service.durability.tensors import TensorReader, TensorWriter, is_native
from ps_wire.codec.payload import ALIGNMENT, Buffer, PayloadReader, PayloadWriter
from ps_wire.codec.records import codec_of
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from ps_wire.v1.values_pb2 import Value


def store(value: Any, message: Value, names: Any, tensors: TensorWriter, prefix: str) -> None:
    """Encodes a value; its tensors go into the files.

    Args:
        value: Anything that can travel.
        message: Filled in.
        names: The list in the message beside it that gets the names of its tensors.
        tensors: Where they go.
        prefix: What their names begin with; the path inside the value follows.

    Raises:
        InvalidArgumentError: The value holds something that cannot travel; nothing was stored.
        OSError: A part cannot be written.
    """
    # Nothing is stored of what cannot be stored whole.
    Encoder(_Nowhere()).encode(value)
    payload = _Storing(tensors, names, prefix, list(_paths(value)))
    encoder = Encoder(payload)
    payload.encoder = encoder
    encoder.encode_into(message, value)


def load(message: Value, names: Sequence[str], tensors: TensorReader) -> Any:
    """The value that was stored.

    Raises:
        InvalidArgumentError: A class it needs is not registered here, or a tensor is not there.
    """
    return Decoder(_Stored(tensors, names)).decode(message)


def as_tensor(payload: Buffer) -> torch.Tensor:
    """Bytes as something that goes into a tensor file."""
    return torch.from_numpy(payload)


class _Nowhere(PayloadWriter):
    """A payload that keeps nothing, to see whether something can be encoded."""

    __slots__ = ()

    def add(self, chunk: memoryview) -> int:
        return 0


class _Storing(PayloadWriter):
    """A payload whose every buffer is a tensor of its own, and whose offsets count them."""

    __slots__ = ("_names", "_paths", "_prefix", "_tensors", "encoder")

    def __init__(self, tensors: TensorWriter, names: Any, prefix: str, paths: list[str]) -> None:
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
            # These are its bytes, or some of them, as the codec writes them.
            tensor = torch.frombuffer(bytearray(chunk), dtype=torch.uint8)
        self._names.append(self._tensors.add(f"{self._prefix}/{path}", tensor))
        return len(self._names) - 1


class _Stored(PayloadReader):
    """The same when it is read."""

    __slots__ = ("_names", "_tensors")

    def __init__(self, tensors: TensorReader, names: Sequence[str]) -> None:
        super().__init__()
        self._tensors = tensors
        self._names = names

    def take(self, offset: int, nbytes: int) -> Buffer:
        if offset >= len(self._names):
            raise InvalidArgumentError(f"the checkpoint names {len(self._names)} tensors of a value with more")
        found: Buffer = self._tensors.get(self._names[offset]).reshape(-1).view(torch.uint8).numpy()
        if len(found) != nbytes:
            raise InvalidArgumentError(f"tensor {self._names[offset]!r} has {len(found)} bytes in place of {nbytes}")
        # What is loaded must not lie in the file. The codec copies what is not aligned, which it reads off the offset.
        return found.copy() if offset % ALIGNMENT == 0 else found


def _paths(value: Any, path: str = "") -> Iterator[str]:
    """Where the tensors of a value are, in the order in which the codec meets them."""
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
