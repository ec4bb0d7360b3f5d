"""Tests that the first look runs in a notebook, and pasted into the console of Python, with a class defined there."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.forking.process import ROOT
from tests.pages.snippets import Page

CELLS = [
    """\
import torch
import trainer_client as tc
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)
    def forward(self, x):
        return self.layer(x)
""",
    """\
ps = await tc.local()
net = await ps.module(Net, name="net", seed=1)
opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
""",
    """\
for _ in range(3):
    async with ps.context() as ctx:
        loss = (await net(torch.ones(2, 3))).square().mean()
        await ctx.backward(loss, step=opt)
print(loss.item() < 1e-3 or loss.item())
""",
    """\
class Net(nn.Module):
    def forward(self, x):
        return 2 * x

net = await ps.module(Net, name="net", replace=True)
print((await net(torch.ones(1))).item())
await ps.close()
""",
    """\
with tc.local() as ps:
    print(ps.module(Net)(torch.ones(1)).item())
""",
    """from trainer_client.reporting.progress import bar_for
bar = bar_for(3, "")
bar.close()
print(type(bar).__name__)
""",
]


def first_look() -> str:
    """The first snippet of the README, with ten steps. All of them are taken where the snippets of the page run."""
    shown, steps, rest = Page("README.md").snippets()[0].code.partition("range(200)")
    assert steps
    return f"{shown}range(10){rest}"


def printed(cell: nbformat.NotebookNode) -> str:
    return "".join(each.text for each in cell.outputs if each.output_type == "stream" and each.name == "stdout")


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.filterwarnings("ignore")  # of the client of notebooks, and the kernel is another process
def test_the_cells_of_a_notebook_train_a_class_that_one_of_them_defines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in (*CELLS, first_look())])
    NotebookClient(notebook, timeout=600, startup_timeout=600, kernel_name="python3").execute()
    *_, trained, again, blocking, bar, look = map(printed, notebook.cells)
    assert (trained, again, blocking, bar) == ("True\n", "2.0\n", "2.0\n", "RichBar\n")
    assert 0 < float(look.split()[-1]) < 100


async def test_the_first_look_pasted_into_a_fresh_python_trains_a_net(tmp_path: Path) -> None:
    console = await asyncio.create_subprocess_exec(
        *(sys.executable, "-i", "-q"),
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await console.communicate(f"{first_look()}\n".encode())
    assert console.returncode == 0 and b"Error" not in errors, errors.decode()
    assert 0 < float(out.split()[-1]) < 100, out.decode()
