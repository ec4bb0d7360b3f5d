"""What a program chooses for a replica: codecs, and how consistent its pulls are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from ps_wire.compression.choice import Choice
from ps_wire.compression.codec import Codec
from ps_wire.errors import InvalidArgumentError
from ps_wire.v1 import operations_pb2 as pb

Compress = Codec | str | Mapping[str, Codec | str | None] | Choice | None
"""Codecs for gradients; see `Choice`."""

Reads = Literal["consistent", "inconsistent"]

READS: Final[dict[str, pb.Reads]] = {"consistent": pb.READS_CONSISTENT, "inconsistent": pb.READS_INCONSISTENT}


def choice_of(compress: Compress) -> Choice:
    """The choice of codecs. Raises `InvalidArgumentError` if it is none."""
    return compress if isinstance(compress, Choice) else Choice(compress)


def known_reads(reads: str) -> pb.Reads:
    """How consistent a pull is, as messages have it. Raises `InvalidArgumentError` if there is no such kind."""
    if reads not in READS:
        raise InvalidArgumentError(f"reads are 'consistent' or 'inconsistent', not {reads!r}")
    return READS[reads]
