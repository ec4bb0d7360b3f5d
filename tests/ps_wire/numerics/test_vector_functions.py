"""Tests that an owner has its first call of oneMKL before it has threads, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT

PROGRAM = """
import ctypes
import sys
from pathlib import Path

import torch

from ps_service.engine import Engine
from ps_wire.numerics.vector_functions import settle

try:
    detect = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")).mkl_vml_serv_cpu_detect
except (OSError, AttributeError):
    sys.exit("this torch is without oneMKL")
begin = ctypes.cast(detect, ctypes.c_void_p).value
code = ctypes.string_at(begin, 6)
if code[:2] != b"\\x8b\\x05":
    sys.exit("this oneMKL keeps the processor in another way")
# The function begins by reading the variable, whose distance from the next instruction stands in this one.
known = ctypes.c_int32.from_address(begin + 6 + int.from_bytes(code[2:], "little", signed=True))
before = known.value
exec(sys.argv[1])
print(before, known.value == detect())
"""


@pytest.mark.parametrize("what", ["settle()", "Engine('ps0')"])
def test_the_processor_is_known_before_threads_compute(what: str) -> None:
    command = [sys.executable, "-c", PROGRAM, what]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode and done.stderr.startswith("this "):
        pytest.skip(done.stderr)
    assert done.stdout == "-1 True\n", done.stderr
