"""Tests of what the runs of torch's suite tell, without running it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.rpc.torch_suite import Test as Each
from tests.torch_suite import catalogue, results
from tests.torch_suite.results import FAILED, NOT_APPLICABLE, PASSED, Result

FILE = "rpc/rpc_test.py"
RESULTS = [
    Result(FILE, "RpcTest", "test_a", PASSED),
    Result(FILE, "RpcTest", "test_b", FAILED, "", "Traceback\n\nValueError: `no`\nTensor:\n   2"),
    Result("rpc/dist_optimizer_test.py", "CudaTest", "test_c", NOT_APPLICABLE, catalogue.CUDA),
]


def test_all_tests_of_torch_are_in_the_catalogue() -> None:
    found = catalogue.tests()
    assert len(found) == len(set(found)) > 500
    assert {test.file for test in found} == set(catalogue.FILES)
    assert [catalogue.named(test) for test in catalogue.tests(["DistOptimizerTest.test_dist_optim_none"])] == [
        "DistOptimizerTest.test_dist_optim_none_grads"
    ]


@pytest.mark.parametrize(
    ("file", "cls", "name", "why"),
    [
        ("rpc/jit/rpc_test.py", "JitRpcTest", "test_any", catalogue.SCRIPT),
        (FILE, "RpcTest", "test_rpc_script_func", catalogue.SCRIPT),
        (FILE, "TensorPipeAgentCudaRpcTest", "test_any", catalogue.CUDA),
        (FILE, "RpcTest", "test_add", ""),
    ],
)
def test_what_is_never_run(file: str, cls: str, name: str, why: str) -> None:
    assert catalogue.never_run(Each(file, cls, name)) == why


@pytest.mark.parametrize(
    ("name", "error", "why"),
    [
        ("test_debug_info", "AssertionError", catalogue.INTERNALS),
        ("test_add", "NotImplementedError: torch.distributed.rpc._x is inside torch's agent", catalogue.INTERNALS),
        ("test_add", "a torch.testing._internal.x.My cannot be sent; what travels is None", catalogue.PICKLED),
        ("test_add", "a torch.futures.Future cannot be sent; what travels is None", ""),
        ("test_add", "AssertionError", ""),
    ],
)
def test_a_failure_applies_unless_there_is_a_reason(name: str, error: str, why: str) -> None:
    assert catalogue.excuse(Each(FILE, "RpcTest", name), ["no end within 3 s", error]) == why


def test_the_report_counts_and_lists() -> None:
    assert results.count(RESULTS) == "1 passed, 1 failed, 1 not applicable"
    told = results.report(RESULTS)
    assert f"| `{FILE}` | 2 | 1 | 1 | 0 |" in told
    assert "| **all** | **3** | **1** | **1** | **1** |" in told
    assert "- `RpcTest.test_b`: `` ValueError: `no` ``" in told
    assert f"- {catalogue.CUDA} (1)" in told


def test_results_are_put_into_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{results.BEGIN}\nold\n{results.END}\nafter\n")
    results.write(tmp_path, RESULTS)
    results.rewrite_page(tmp_path, page)
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert "**1 passed, 1 failed, 1 not applicable**" in text and "- `RpcTest`: test_b\n" in text


def test_the_page_shows_a_whole_run() -> None:
    block = results.PAGE.read_text().partition(results.BEGIN)[2].partition(results.END)[0]
    rows = re.findall(r"^\| `([^`]+)` \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", block, re.MULTILINE)
    shown = {file: tuple(map(int, numbers)) for file, *numbers in rows}
    assert {file: total for file, (total, *_) in shown.items()} == Counter(test.file for test in catalogue.tests())
    assert all(total == sum(parts) for total, *parts in shown.values())
    sums = [sum(column) for column in zip(*shown.values(), strict=True)]
    assert f"**{sums[1]} passed, {sums[2]} failed, {sums[3]} not applicable**" in block
    failed = re.findall(r"\btest_\w+", block.partition("Which failed:")[2])
    assert len(failed) == sums[2]
    assert {*failed} <= {test.name for test in catalogue.tests()}
    reasons = re.findall(r"^- .* \((\d+)\)$", block, re.MULTILINE)
    assert sum(map(int, reasons)) == sums[3]
