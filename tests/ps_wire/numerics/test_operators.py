"""Tests that threads find the Python objects of operators, in a process of its own, which would end otherwise."""

from __future__ import annotations

import subprocess
import sys

import torch

from ps_wire.numerics.operators import resolve
from tests.conftest import ROOT

PROGRAM = """
import sys
import threading
import warnings

import torch

from ps_wire.numerics.operators import resolve

warnings.simplefilter("ignore")
known = set(vars(torch.ops.aten))
sys.setswitchinterval(1e-6)
if sys.argv[1] == "resolved":
    resolve()


class Seen(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return None


# Those that torch itself has not made yet when it is imported.
names = [each for each in dir(torch._C._VariableFunctions) if each not in known and not each.startswith("_")]
barrier = threading.Barrier(6)


def call():
    tensor = torch.Tensor._make_subclass(Seen, torch.ones(3))
    for name in names:
        barrier.wait()
        try:
            getattr(torch._C._VariableFunctions, name)(tensor)
        except Exception:
            pass


threads = [threading.Thread(target=call) for _ in range(6)]
for each in threads:
    each.start()
for each in threads:
    each.join()
print("all there")
"""


def ended(how: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "faulthandler", "-c", PROGRAM, how]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_threads_that_see_an_operation_first_at_the_same_time_find_its_object() -> None:
    """Without `resolve`, this process ends with a segmentation fault nearly every time."""
    done = ended("resolved")
    assert (done.returncode, done.stdout) == (0, "all there\n"), done.stderr


def test_operators_of_a_library_that_comes_later_are_made_when_asked_for() -> None:
    resolve()
    with torch.library._scoped_library("coming_late", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        made = vars(torch.ops.coming_late)
        resolve()
        assert "twice" not in made
        resolve(again=True)
        assert "default" in vars(made["twice"])
    resolve(again=True)
