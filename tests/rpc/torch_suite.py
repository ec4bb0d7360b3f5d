"""What torch's own suite tests of its rpc, held against the tests here: the table in docs/coming-from-torch-rpc.md.

python -m tests.rpc.torch_suite            # prints the table
python -m tests.rpc.torch_suite --all      # and where each of torch's tests went
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import torch.testing

_TORCH: Final = Path(torch.testing.__file__).parent / "_internal" / "distributed"
_HERE: Final = Path(__file__).parent

FILES: Final = (
    "rpc/rpc_test.py",
    "rpc/dist_autograd_test.py",
    "rpc/dist_optimizer_test.py",
    "rpc/faulty_agent_rpc_test.py",
    "nn/api/remote_module_test.py",
)

SAME: Final = "same name here"
OTHERWISE: Final = "covered otherwise"
NOT_APPLICABLE: Final = "does not apply"
MISSING: Final = "not there"


class Rule(NamedTuple):
    """Where tests went that have no namesake here.

    Attributes:
        pattern: Of their class and name, as `Class.test_name`.
        verdict: What became of them.
        why: In a few words.
    """

    pattern: str
    verdict: str
    why: str


RULES: Final = (
    Rule(r"Cuda|gpu|_cuda_|_cuda$|device_map|_stream|synchroni[sz]ation", NOT_APPLICABLE, "CUDA devices and streams"),
    Rule(r"devices_option|device_mismatch", NOT_APPLICABLE, "CUDA devices and streams"),
    Rule(r"script|_jit_", NOT_APPLICABLE, "TorchScript"),
    Rule(r"profiler_with_async_rpc_udf", NOT_APPLICABLE, "asserts that Kineto shows no calls; here it does"),
    Rule(r"server_process_global_profiler|disable_gil", NOT_APPLICABLE, "internals of torch's agent"),
    Rule(r"profil|record_function", OTHERWISE, "tests/rpc/test_profiling.py"),
    Rule(r"debug_info|rref_type|rref_get_type|ignore_rref_leak", NOT_APPLICABLE, "internals of torch's agent"),
    Rule(r"backend_and_set|infer_backend|dist_init_decorator", NOT_APPLICABLE, "internals of torch's agent"),
    Rule(r"no_grad_copy|grad_copy_sparse", NOT_APPLICABLE, "internals of torch's agent"),
    Rule(r"use_rpc_pickler", NOT_APPLICABLE, "nothing is pickled"),
    Rule(r"FaultyAgent.*(options|failed_messages|custom|no_faulty)", NOT_APPLICABLE, "the test agent itself"),
    Rule(r"FaultyAgent.*message_dropped", OTHERWISE, "tests/integration/test_retries.py: broken streams"),
    Rule(r"FaultyAgent.*delay|rpc_builtin_timeout", OTHERWISE, "tests/rpc/test_faults.py, with a function that waits"),
    Rule(r"shutdown_errors", OTHERWISE, "tests/rpc/test_groups.py and test_lifetimes.py"),
    Rule(r"backward_node_failure_python_udf", OTHERWISE, "tests/rpc/test_faults.py: test_backward_node_failure"),
)


class Test(NamedTuple):
    """One test of torch's."""

    file: str
    cls: str
    name: str


@cache
def torchs(files: tuple[str, ...] = FILES) -> list[Test]:
    """Every test in these files of torch's suite, in order."""
    found = []
    for file in files:
        for node in ast.parse((_TORCH / file).read_text()).body:
            if isinstance(node, ast.ClassDef):
                names = [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
                found += [Test(file, node.name, name) for name in names if name.startswith("test_")]
    return found


@cache
def ours() -> set[str]:
    """The names of the tests beside this file."""
    names = set()
    for path in _HERE.glob("test_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                names.add(node.name)
    return names


def verdict(test: Test, names: set[str]) -> tuple[str, str]:
    """What became of one test, and why."""
    # What runs on CUDA there is another situation than the one of that name here.
    if test.name in names and "Cuda" not in test.cls:
        return SAME, ""
    for rule in RULES:
        if re.search(rule.pattern, f"{test.cls}.{test.name}"):
            return rule.verdict, rule.why
    return MISSING, "not looked at"


def table() -> str:
    """The table, in Markdown: one row for each of torch's files."""
    names = ours()
    verdicts = (SAME, OTHERWISE, NOT_APPLICABLE, MISSING)
    rows = [["torch's file", "tests", *verdicts], ["---", *["---:"] * (1 + len(verdicts))]]
    totals: Counter[str] = Counter()
    for file in FILES:
        found = Counter(verdict(test, names)[0] for test in torchs() if test.file == file)
        totals += found
        rows.append([f"`{file}`", *map(str, (found.total(), *(found[each] for each in verdicts)))])
    rows.append(["**all**", *(f"**{number}**" for number in (totals.total(), *(totals[each] for each in verdicts)))])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def reasons() -> str:
    """Why tests have no namesake here, in Markdown, with how many of them there are."""
    names = ours()
    found = Counter(verdict(test, names) for test in torchs())
    lines = [f"- {what}: {why} ({count})" for (what, why), count in sorted(found.items()) if what != SAME]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(), reasons(), sep="\n\n")
    if "--all" in sys.argv:
        for test in torchs():
            print(*test, *verdict(test, ours()), sep="\t")
