"""Says whether oneMKL knows the processor once something was done in a process that has not computed before.

python -m tests.ps_wire.numerics.known_processor settle|owner|trainer
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
from pathlib import Path

import torch

from ps_service.engine import Engine
from ps_wire.numerics import vector_functions
from trainer_client.client.client import Client
from trainer_client.session.settings import Settings


async def trainer() -> None:
    """Makes a client."""
    Client([], Settings())


def main(what: str) -> None:
    """Says what the variable holds beforehand, and whether it is right afterwards."""
    try:
        detect = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")).mkl_vml_serv_cpu_detect
    except (OSError, AttributeError):
        sys.exit("this torch is without oneMKL")
    begin = ctypes.cast(detect, ctypes.c_void_p).value or 0
    code = ctypes.string_at(begin, 6)
    if code[:2] != b"\x8b\x05":
        sys.exit("this oneMKL keeps the processor in another way")
    # The function begins by reading the variable, whose distance from the next instruction stands in this one.
    known = ctypes.c_int32.from_address(begin + 6 + int.from_bytes(code[2:], "little", signed=True))
    # So it begins. A process that was forked may have computed.
    known.value, vector_functions._settled = -1, False
    if what == "settle":
        vector_functions.settle()
    elif what == "owner":
        Engine("ps0")
    else:
        asyncio.run(trainer())
    print(known.value == detect())


if __name__ == "__main__":
    main(*sys.argv[1:])
