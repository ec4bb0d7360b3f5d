"""The values that trainers have reported with gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from ps_wire.codec.values import Decoder

if TYPE_CHECKING:
    from ps_wire.codec.payload import PayloadReader
    from ps_wire.v1.frames_pb2 import Reply


class ReportedValues(dict[str, Any]):
    """The reduced values by name; those that are kept, as dictionaries by `Client.trainer_name`.

    Attributes:
        counts: How many gradients came with each of them, by name.
        gradients: How many gradients came with any.
    """

    def __init__(self, values: dict[str, Any], counts: dict[str, int], gradients: int) -> None:
        super().__init__(values)
        self.counts = counts
        self.gradients = gradients

    @classmethod
    def of(cls, reply: Reply, payload: PayloadReader) -> Self:
        """The values in a reply."""
        found = reply.reported
        counts = dict(zip(found.names, found.counts, strict=True))
        return cls(Decoder(payload).decode(found.values), counts, found.gradients)

    def __repr__(self) -> str:
        return f"ReportedValues({super().__repr__()}, gradients={self.gradients})"
