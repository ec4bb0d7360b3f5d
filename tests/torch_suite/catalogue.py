"""Which tests torch has, and which of them do not apply to this project."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from tests.rpc import torch_suite
from tests.rpc.torch_suite import NOT_APPLICABLE, RULES, Test

FILES: Final = (
    *torch_suite.FILES,
    "ddp_under_dist_autograd_test.py",
    "rpc/examples/parameter_server_test.py",
    "rpc/examples/reinforcement_learning_rpc_test.py",
    "rpc/jit/rpc_test.py",
    "rpc/jit/dist_autograd_test.py",
    "rpc/jit/rpc_test_faulty.py",
)
"""The files of torch's suite, below `torch/testing/_internal/distributed`."""

CUDA: Final = "CUDA devices and streams"
SCRIPT: Final = "TorchScript"
INTERNALS: Final = "internals of torch's agent"
PICKLED: Final = "nothing is pickled: lambdas and objects of unmarked classes"
FAULTY: Final = "torch's agent that drops messages by their kind; here they are sent again"

_NEVER_RUN: Final = (
    (r"^rpc/jit/|:\w+\.\w*(script|_jit_)", SCRIPT),
    (r":\w*Cuda", CUDA),
)
"""Patterns of `file:Class.test`, and why such a test is not run."""

_ERRORS: Final = (
    (r"remote_module\._RemoteModule is inside", SCRIPT),
    (r"is inside torch's agent|no attribute '_get_type'", INTERNALS),
    (r"Timed out waiting \d+ sec for \d+ owners and \d+ forks", INTERNALS),
    (r"\ba torch\.testing\._internal\.\S+ cannot be sent", PICKLED),
    (r"cannot be called elsewhere: a lambda", PICKLED),
    (r"\bMyClass\.my_instance_method is bound to an object", PICKLED),
)
"""What errors say of a test that asks for something that is not here on purpose, and the reason."""


def tests(words: Iterable[str] = ()) -> list[Test]:
    """Torch's tests, in order; with words, those whose `Class.test` contains one of them."""
    wanted = tuple(words)
    found = torch_suite.torchs(FILES)
    return [test for test in found if not wanted or any(word in named(test) for word in wanted)]


def named(test: Test) -> str:
    """The name of a test, as `Class.test`."""
    return f"{test.cls}.{test.name}"


def never_run(test: Test) -> str:
    """Why a test is not run; empty if it is."""
    return _reason(_NEVER_RUN, f"{test.file}:{named(test)}")


def excuse(test: Test, errors: Iterable[str]) -> str:
    """Why a test that has failed does not apply; empty if it does, and counts as failed.

    Args:
        test: The test.
        errors: The errors of all its processes.
    """
    for rule in RULES:
        if rule.verdict == NOT_APPLICABLE and re.search(rule.pattern, named(test)):
            return rule.why
    return _reason(_ERRORS, "\n".join(errors))


def _reason(patterns: Iterable[tuple[str, str]], text: str) -> str:
    return next((why for pattern, why in patterns if re.search(pattern, text)), "")
