"""Tests that the recommender is exactly local torch with one trainer, and learns as much with two."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

import trainer_client as tc
from examples.recommender import model
from examples.recommender.__main__ import main
from examples.recommender.auc import auc
from examples.recommender.model import DIM, Dense
from examples.recommender.reference import Reference
from examples.recommender.settings import Settings, source_of
from examples.recommender.trainer import Recommender
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server
from tests.examples.output import assert_announced

ROOT = Path(__file__).resolve().parents[2]
ALONE = Settings(trainers=1, steps=12, batch_size=64, held_out=2000)


@pytest.fixture
async def ps() -> AsyncIterator[tc.Client]:
    """A trainer of two owners."""
    allowed = AllowList([model])
    async with (
        Server(Engine("ps0", allowed)) as first,
        Server(Engine("ps1", allowed)) as second,
        tc.connect(first.address, second.address) as client,
    ):
        yield client


async def test_one_trainer_with_two_owners_is_one_process_with_torch(ps: tc.Client) -> None:
    source = source_of(ALONE)
    reference = Reference(ALONE, source)
    recommender = await Recommender.attach(ps, ALONE)
    losses = [await recommender.learn(batch) for batch in source.batches()]
    assert losses == pytest.approx(list(reference.train()), abs=1e-5)
    held_out = source.held_out()
    scores = await recommender.predict(held_out)
    with torch.no_grad():
        torch.testing.assert_close(scores, reference.predict(held_out), rtol=0, atol=1e-4)
    assert auc(held_out.labels, scores) > 0.52

    sizes = await asyncio.gather(*(table.size() for table in recommender.tables))
    seen = torch.cat([batch.ids for batch in source.batches()])
    assert sizes == [column.unique().numel() for column in seen.T], "predictions make no rows"


def test_the_dense_part_is_a_dlrm() -> None:
    net = Dense()
    assert sum(each.numel() for each in net.parameters()) == 57_361
    dense, rows = torch.randn(3, 13), torch.randn(3, 26, DIM)
    below = net.bottom(dense)
    vectors = [below, *rows.unbind(1)]
    products = [(vectors[i] * vectors[j]).sum(1) for i in range(27) for j in range(i)]
    expected = net.top(torch.cat([below, torch.stack(products, dim=1)], dim=1)).squeeze(1)
    torch.testing.assert_close(net(dense, rows), expected)


@pytest.mark.usefixtures("forked_programs")
def test_two_trainers_learn_as_much_as_one_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.recommender", "--steps", "25", "--batch-size", "256"]
    # So few steps differ by what stale rows cost, which later ones make up for.
    command += ["--held-out", "1000", "--tolerance", "0.04"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    shown = done.stdout
    assert done.returncode == 0, shown + done.stderr
    assert_announced(shown, until="step 2/25")
    assert os.listdir(tmp_path) == ["short"], "a short run leaves the files of a full one alone"
    report = json.loads((tmp_path / "short" / "recommender.json").read_text())
    assert report["auc"] == pytest.approx(report["reference"][-1][1], abs=0.04)
    assert 0.6 < report["auc"] < report["best"]
    assert report["points"][-1]["step"] == 25
    assert "step 25/25" in shown and f"{report['auc']:.4f}" in shown
    assert (tmp_path / "short" / "recommender.png").stat().st_size > 10_000


def test_bad_arguments_and_files_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    with pytest.raises(SystemExit) as ended:
        main(["--trainers", "0"])
    assert ended.value.code == 2
    assert torch.get_num_threads() == threads
    assert main(["--data", str(tmp_path / "missing"), "--out", str(tmp_path)]) == 1
    assert "missing" in capsys.readouterr().out
