"""Measures what an owner with tokens adds to a request: the check of the role, and of whose pass it names."""

from __future__ import annotations

import statistics
import timeit
from pathlib import Path
from typing import Final

from ps_service.access.identities import Asker
from ps_service.access.token_file import TokenFile
from ps_service.engine import Engine
from ps_service.requests.operations import OPERATIONS
from ps_wire.v1.operations_pb2 import CallRequest

TIMES: Final = 9
"""Repetitions; the median counts."""

_CHECKS: Final = 5_000
_TRAINER: Final = bytes(16)


def measure(scratch: Path, times: int = TIMES, checks: int = _CHECKS) -> dict[str, float]:
    """Microseconds of one core: for a request `with_tokens` and `without`, and for `identifying` the bearer of a token,
    once for each stream, among the twenty of the file."""
    path = scratch / "tokens"
    file = TokenFile(path)
    tokens = [file.add(f"trainer{number}", ("trainer",)) for number in range(20)]
    guarded, open_to_all = Engine("guarded", tokens=file), Engine("open")
    header = [f"Bearer {tokens[-1]}"]
    asker = Asker(guarded.access.identify(header), _TRAINER)
    call, request = OPERATIONS["call"], CallRequest(method="forward")
    request.context.trainer, request.context.number = _TRAINER, 1

    def of(work: object) -> float:
        seconds = timeit.repeat(work, number=checks, repeat=times)  # type: ignore[arg-type]
        return statistics.median(seconds) / checks * 1e6

    return {
        "with_tokens": of(lambda: guarded.belongings.admit(asker, "", call, request)),
        "without": of(lambda: open_to_all.belongings.admit(None, "", call, request)),
        "identifying": of(lambda: guarded.access.identify(header)),
    }
