"""Evaluates calls of torch that crash it, given as text. A program of its own: it may die of them.

    python -m tests.ps_service.functions.deadly refused|alone TEXT ...

With `refused` they go through the functions that an owner offers, and the errors are printed, a line each; with
`alone` each goes to torch in a child, and the exit codes are printed.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from ps_service.functions.groups import Level
from ps_service.functions.torch_functions import TorchFunctions
from ps_wire.errors import PsError

MEMORY = 8 << 30
"""Address space of this process beyond what it begins with."""


class Names:
    """A module of which the listed functions are those that an owner offers.

    Args:
        prefix: Its name.
        real: The module.
    """

    functions = TorchFunctions(Level.ALL)

    def __init__(self, prefix: str, real: Any) -> None:
        self._prefix, self._real = prefix, real

    def __getattr__(self, name: str) -> Any:
        return self.functions.get(f"{self._prefix}.{name}") or getattr(self._real, name)


class Torch(Names):
    """Torch, with what makes the arguments as it is."""

    Tensor = Names("torch.Tensor", torch.Tensor)
    sparse_csr_tensor, sparse_coo_tensor = map(staticmethod, (torch.sparse_csr_tensor, torch.sparse_coo_tensor))

    def zeros(self, *size: int) -> Any:
        return (torch.zeros if max(size) < 2**30 else self.functions.get("torch.zeros"))(*size)  # type: ignore[misc]


def refused(texts: list[str]) -> None:
    """Prints with which errors the calls are refused."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    names = {"torch": Torch("torch", torch), "F": Names("torch.nn.functional", F)}
    for text in texts:
        try:
            eval(text, names)
        except PsError as error:
            print(type(error).__name__)
        else:
            print("accepted:", text)


def alone(texts: list[str]) -> None:
    """Prints how children end that make the calls."""
    for text in texts:
        if (child := os.fork()) == 0:
            eval(text)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    {"refused": refused, "alone": alone}[sys.argv[1]](sys.argv[2:])
