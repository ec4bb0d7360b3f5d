"""Six threads see each operation of torch at the same time, the first time. A program of its own: it may die of it.

python -m tests.ps_wire.numerics.first_operations
"""

from __future__ import annotations

import sys
import threading
import warnings
from contextlib import suppress
from typing import Any

import torch

from ps_wire.numerics.operators import resolve

warnings.simplefilter("ignore")
known = set(vars(torch.ops.aten))
sys.setswitchinterval(1e-6)
resolve()


class Seen(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, *_: Any) -> None: ...


# Those that torch itself has not made yet when it is imported.
names = [each for each in dir(torch._C._VariableFunctions) if each not in known and not each.startswith("_")]
barrier = threading.Barrier(6)


def call() -> None:
    tensor = torch.Tensor._make_subclass(Seen, torch.ones(3))
    for name in names:
        barrier.wait()
        with suppress(Exception):
            getattr(torch._C._VariableFunctions, name)(tensor)


threads = [threading.Thread(target=call) for _ in range(6)]
for each in threads:
    each.start()
for each in threads:
    each.join()
print("all there")
