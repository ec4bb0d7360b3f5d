"""Measures how fast the codecs of `ps_wire.compression` encode and decode, beside a copy of the same memory.

`python -m benchmarks.codecs` prints a table for a gradient of 10 million random float32; `--markdown` prints it as it
stands in the README. A round has one turn of each codec and of the copy, so that all see the same machine; medians over
rounds are shown. Bytes on the wire are those of a whole message: names, parameters, descriptions and tensors.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from ps_wire.codec.payload import PayloadWriter
from ps_wire.codec.values import Encoder
from ps_wire.compression.codec import Codec, Encoded
from ps_wire.compression.registry import decode
from ps_wire.connections.buffers import teach_malloc
from trainer_client.codecs import BF16, FP16, Int8, PowerSGD, RandomK, Sign, TopK, Zstd

COLUMNS: Final = ("codec", "encode, GB/s", "decode, GB/s", "encode / copy", "decode / copy", "on the wire", "left out")
ROWS: Final = 2500
"""Rows of the gradient; PowerSGD sends factors of this matrix."""

CODECS: Final[tuple[Codec, ...]] = (
    FP16(),
    BF16(),
    Int8(),
    TopK(0.01),
    TopK(0.1),
    RandomK(0.01, seed=1),
    Sign(),
    PowerSGD(4),
    Zstd(1),
    Zstd(3),
)


@dataclass
class Measured:
    """One codec.

    Attributes:
        codec: The codec.
        encode: Seconds of each round.
        decode: Seconds of each round.
        nbytes: Bytes of a message.
        left_out: Norm of what is left out, divided by that of the gradient.
        state: What the codec keeps of the gradient.
    """

    codec: Codec
    encode: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)
    nbytes: int = 0
    left_out: float = 0.0
    state: dict[str, Any] = field(default_factory=dict)


def measure(numel: int, rounds: int) -> tuple[list[float], list[Measured]]:
    """Seconds of the copy in each round, and the codecs. The first round is not counted."""
    gradient = torch.randn(ROWS, numel // ROWS, generator=torch.Generator().manual_seed(0))
    target = torch.empty_like(gradient)
    copies: list[float] = []
    measured = [Measured(codec) for codec in CODECS]
    for number in range(rounds + 1):
        copied, _ = _timed(lambda: target.copy_(gradient))
        if number:
            copies.append(copied)
        for each in measured:
            _turn(each, gradient, counts=number > 0)
    return copies, measured


def on_the_wire(encoded: Encoded) -> int:
    """The bytes of a message that carries an encoded tensor."""
    payload = PayloadWriter()
    message = Encoder(payload).encode(encoded)
    return message.ByteSize() + payload.nbytes


def _turn(measured: Measured, gradient: torch.Tensor, counts: bool) -> None:
    codec = measured.codec
    encoding, encoded = _timed(lambda: codec.encode(gradient, measured.state))
    decoding, decoded = _timed(lambda: decode(encoded, gradient))
    if counts:
        measured.encode.append(encoding)
        measured.decode.append(decoding)
    measured.nbytes = on_the_wire(encoded)
    measured.left_out = ((decoded - gradient).norm() / gradient.norm()).item()


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = perf_counter()
    result = work()
    return perf_counter() - began, result


def rows(copies: list[float], measured: list[Measured], nbytes: int) -> list[tuple[str, ...]]:
    """The rows of the table. A ratio is computed within each round."""
    copy = statistics.median(copies)
    shown = [("memory copy", _rate(nbytes, copy), "", "1", "", "100 %", "0")]
    for each in measured:
        ratios = [
            statistics.median(seconds / copied for seconds, copied in zip(part, copies, strict=True))
            for part in (each.encode, each.decode)
        ]
        rates = [_rate(nbytes, statistics.median(part)) for part in (each.encode, each.decode)]
        on_wire = f"{each.nbytes / nbytes:.2%}".replace("%", " %")
        shown.append((str(each.codec), *rates, *(f"{ratio:.1f}" for ratio in ratios), on_wire, f"{each.left_out:.2g}"))
    return shown


def _rate(nbytes: int, seconds: float) -> str:
    return f"{nbytes / seconds / 1e9:.2f}"


def main(arguments: list[str] | None = None) -> None:
    """Measures the codecs and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.codecs", description="Measures the codecs.")
    parser.add_argument("--numel", type=int, default=10_000_000, help="elements of the gradient")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each codec")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    teach_malloc()
    told = machine.line(machine.describe(chosen.threads))
    numel = chosen.numel // ROWS * ROWS
    lines = rows(*measure(numel, chosen.rounds), nbytes=4 * numel)
    if chosen.markdown:
        print(f"Measured on {told}; {numel:,} float32, {chosen.rounds} rounds.\n")
        print(f"| {' | '.join(COLUMNS)} |\n|---|{'--:|' * (len(COLUMNS) - 1)}")
        for line in lines:
            print(f"| {' | '.join(line)} |")
        return
    table = Table(*COLUMNS)
    for line in lines:
        table.add_row(*line)
    Console().print(told, table)


if __name__ == "__main__":
    main()
