"""The tensors of records in the payload of a record of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ps_wire.codec.payload import PayloadReader
from ps_wire.codec.values import Decoder, Encoder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ps_wire.codec.payload import Buffer, PayloadWriter
    from ps_wire.v1.values_pb2 import Value

_BLOCKS = "blocks"


class RecordStorage:
    """Stores tensors in the payload of a record. They have offsets there, and no names."""

    def __init__(self, payload: PayloadWriter) -> None:
        self._payload = payload

    def store(self, value: Any, message: Value, names: Any = None, prefix: str = "") -> None:
        """As `Storage.store`."""
        Encoder(self._payload).encode_into(message, value)

    def store_table(self, state: Mapping[str, Any], message: Value, names: Any = None, prefix: str = "") -> None:
        """As `Storage.store_table`."""
        self.store({**state, _BLOCKS: list(state[_BLOCKS])}, message)

    def add(self, name: str, content: Buffer) -> str:
        """As `Storage.add`. The name is offset and length."""
        return f"{self._payload.add(content.data)}+{len(content)}"


class RecordSource:
    """Reads what `RecordStorage` has stored."""

    def __init__(self, payload: Buffer) -> None:
        self._payload = payload
        self._reader = PayloadReader(payload)

    def load(self, message: Value, names: Sequence[str] = ()) -> Any:
        """As `Source.load`."""
        return Decoder(self._reader).decode(message)

    def load_table(self, message: Value, names: Sequence[str] = ()) -> dict[str, Any]:
        """As `Source.load_table`."""
        state: dict[str, Any] = self.load(message)
        return state

    def find(self, name: str) -> Buffer | None:
        """As `Source.find`."""
        if not name:
            return None
        offset, _, nbytes = name.partition("+")
        return self.part(int(offset), int(nbytes))

    @property
    def nbytes(self) -> int:
        """Bytes of the payload."""
        return len(self._payload)

    def part(self, offset: int, nbytes: int) -> Buffer:
        """Bytes of the payload."""
        return self._payload[offset : offset + nbytes]
