"""Every listed function, and torch's layers, called with hostile arguments in processes that may die: none does.

The seed and the number of examples are taken from the environment for a longer run:
`PS_HOSTILE_EXAMPLES=200 PS_HOSTILE_SEED=7 pytest tests/ps_service/functions/test_hostile.py --timeout 3600`.
"""

from __future__ import annotations

import os
from contextlib import aclosing
from pathlib import Path

from tests.forking.process import Forking

EXAMPLES = os.environ.get("PS_HOSTILE_EXAMPLES", "3")
SEED = os.environ.get("PS_HOSTILE_SEED", "0")


async def test_hostile_arguments_cause_no_crash_and_take_little_memory_and_time(
    forking: Forking, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    program = ("tests.ps_service.functions.hostile", SEED, EXAMPLES, str(notes))
    async with aclosing(await forking.begin(*program, errors=True)) as process:
        out, error = await process.communicate()
    assert process.returncode == 0, f"died of {notes.read_text().strip()}: {error.decode()[-2000:]}"
    assert out == b""
    assert notes.read_text().strip() == "done"


# What torch reads or writes beyond its memory for, dies of, or takes all memory or minutes for.
DEADLY = {
    "ctc_loss": "F.ctc_loss(torch.rand(10, 2, 5).log_softmax(2), torch.full((2, 3), -90000), (10, 10), (3, 3))",
    "embedding_bag": "F.embedding_bag(torch.zeros(6).long(), torch.rand(5, 4), torch.zeros(1).long(), mode='max', "
    "include_last_offset=True)",
    "division": "torch.floor_divide(torch.tensor([-(2**63)]), -1)",
    "remainder": "torch.remainder(torch.tensor([-(2**63)]), torch.tensor([-1]))",
    "rounding": "torch.div(torch.tensor([-(2**31)], dtype=torch.int32), -1, rounding_mode='floor')",
    "stride": "torch.conv1d(torch.rand(2, 3, 8, requires_grad=True), torch.rand(4, 3, 3), None, 100000, 1).sum()"
    ".backward()",
    "windows": "F.fold(torch.ones(2, 12, 9), (4, 4), (2, 2), 1, 2**31, 1)",
    "csr": "torch.mv(torch.sparse_csr_tensor([0, 900000], [0], [1.0], (1, 2), check_invariants=False), torch.ones(2))",
    "coo": "torch.Tensor.to_dense(torch.sparse_coo_tensor([[-900000]], [1.0], (2,), check_invariants=False))",
    "memory": "torch.zeros(2**40)",
    "lists": "torch.Tensor.tolist(torch.zeros(1).expand(2**30))",
    "eye": "torch.eye(10**6)",
    "product without factors": "torch.mm(torch.zeros(10**6, 0), torch.zeros(0, 10**6))",
    "pieces": "torch.chunk(torch.zeros(0), 10**9)",
    "contraction": "torch.tensordot(torch.ones(2), torch.ones(2), 10**9)",
    "repeats": "torch.repeat_interleave(torch.ones(1), torch.tensor([2**40]))",
    "padding": "F.pad(torch.ones(1, 1), (10**9, 10**9, 10**9, 10**9))",
    "scale": "F.interpolate(torch.ones(1, 1, 4), scale_factor=1e12)",
}


def test_calls_that_crash_torch_are_refused(forking: Forking) -> None:
    with forking.start("tests.ps_service.functions.deadly", "refused", *DEADLY.values()) as process:
        told = process.communicate().split("\n")[:-1]
    assert process.returncode == 0
    assert set(told) == {"InvalidArgumentError", "TooLargeError"}, told
    assert len(told) == len(DEADLY)


def test_torch_alone_dies_of_it(forking: Forking) -> None:
    """Otherwise the checks above would test nothing."""
    cases = [DEADLY[name] for name in ("csr", "embedding_bag", "stride")]
    with forking.start("tests.ps_service.functions.deadly", "alone", *cases) as process:
        codes = [int(line) for line in process.communicate().splitlines()]
    assert process.returncode == 0
    assert len(codes) == 3 and max(codes) < 0
