"""Tests the ratings of the recommender: MovieLens' formats, leave-one-out, HR@10, and training beside local torch."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import torch

import trainer_client as tc
from examples.recommender.__main__ import main
from examples.recommender.ratings import model, planted
from examples.recommender.ratings.movielens import Ratings, RatingsError, read
from examples.recommender.ratings.ranking import rank
from examples.recommender.ratings.reference import Reference
from examples.recommender.ratings.settings import Settings
from examples.recommender.ratings.split import NEGATIVES, LeaveOneOut
from examples.recommender.ratings.trainer import Collaborative
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server
from tests.examples.output import assert_announced

ROOT = Path(__file__).resolve().parents[2]
SMALL = planted.draw(users=60, items=220, mean=30)


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


@pytest.mark.parametrize("kind", ["neumf", "gmf"])
async def test_one_trainer_with_two_owners_is_one_process_with_torch(ps: tc.Client, kind: str) -> None:
    settings = Settings(trainers=1, model=kind, batch_size=128, steps=12, table_lr=0.05)
    source = LeaveOneOut(SMALL.ratings, settings.seed, settings.batch_size, steps=settings.steps)
    reference, collaborative = Reference(settings, source), await Collaborative.attach(ps, settings)
    losses = [await collaborative.learn(batch) for batch in source.batches()]
    assert losses == pytest.approx(list(reference.train()), abs=1e-5)
    assert losses[-1] < losses[0] - 0.005
    sizes = await asyncio.gather(*(table.size() for table in collaborative.tables))
    assert await collaborative.test(source.tests) == pytest.approx(reference.test(), abs=0.02)
    assert await asyncio.gather(*(table.size() for table in collaborative.tables)) == sizes, "tests make no rows"


@pytest.mark.parametrize(
    "text",
    [
        "1::10::5::978300760\n1::20::3.5::978302109\n2::10::1::978301968\n",
        "userId,movieId,rating,timestamp\r\n1,10,5.0,978300760\r\n1,20,3.5,978302109\r\n2,10,1.0,978301968\r\n",
        "1\t10\t5\t978300760\n1\t20\t3\t978302109\n2\t10\t1\t978301968",
    ],
)
def test_the_formats_of_movielens_are_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ratings"
    path.write_text(text)
    ratings = read(path)
    assert ratings.users.tolist() == [1, 1, 2]
    assert ratings.items.tolist() == [10, 20, 10]
    assert ratings.times.tolist() == [978300760, 978302109, 978301968]


@pytest.mark.parametrize("wrong", ["1::2::3", "1,2::3,4", "1::2::x::4", "1::2::3::4::5", "user,item,rating,time", ""])
def test_a_line_in_another_format_is_an_error_that_names_it(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "ratings"
    path.write_text(f"1::2::3::4\n{wrong}\n")
    with pytest.raises(RatingsError, match=r"ratings, line 2: not a user"):
        read(path)
    path.write_text("")
    with pytest.raises(RatingsError, match="no ratings"):
        read(path)


def test_the_generated_text_is_read_as_what_was_generated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planted.main(["--users", "30", "--items", "120", "--seed", "3"])
    path = tmp_path / "ratings.dat"
    path.write_text(capsys.readouterr().out)
    for found, expected in zip(read(path), planted.draw(3, 30, 120).ratings, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_the_latest_rating_of_each_user_is_ranked_among_items_that_the_user_has_not_rated() -> None:
    ratings = SMALL.ratings
    source = LeaveOneOut(ratings, seed=0, batch_size=50, negatives=2, epochs=2)
    assert len(source.tests.users) == 60
    for user, items in zip(source.tests.users.tolist(), source.tests.items.tolist(), strict=True):
        own = ratings.users == user
        assert items[0] == ratings.items[own][ratings.times[own].argmax()]
        assert len(set(items)) == 1 + NEGATIVES
        assert not set(items[1:]) & set(ratings.items[own].tolist())

    held = set(zip(source.tests.users.tolist(), source.tests.items[:, 0].tolist(), strict=True))
    rated = set(zip(ratings.users.tolist(), ratings.items.tolist(), strict=True)) - held
    batches = list(source.batches())
    assert len(batches) == source.steps == 2 * (len(rated) * 3 // 50)
    half = len(batches) // 2
    for epoch in (batches[:half], batches[half:]):
        pairs = [pair for each in epoch for pair in zip(*(part.tolist() for part in each), strict=True)]
        positive = [(user, item) for user, item, label in pairs if label]
        assert len(set(positive)) == len(positive) and set(positive) <= rated
        assert len(positive) > len(rated) - 50
        assert not {(user, item) for user, item, label in pairs if not label} & rated
    assert not torch.equal(batches[0].items, batches[half].items), "negatives are drawn anew in each epoch"
    popular = {item: sum(item == each for _, each in rated) for item in ratings.items.tolist()}
    assert source.popularity[5, 7] == popular[source.tests.items[5, 7].item()]

    for rank_of in (0, 1):
        part = list(source.batches(rank_of, 2))
        for found, expected in zip(part, batches[rank_of::2], strict=True):
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_an_item_that_a_user_rates_again_counts_once_and_as_late_as_the_last_time() -> None:
    items = np.arange(1, 121)
    ratings = Ratings(
        np.array([7, 7, 7, *np.full(120, 8), 9]), np.array([5, 6, 5, *items, 6]), np.array([1, 2, 3, *items, 1])
    )
    source = LeaveOneOut(ratings, seed=0, batch_size=1, negatives=1)
    assert source.tests.users.tolist() == [7], "8 has no 99 other items, and 9 has nothing to train on"
    assert source.tests.items[0, 0] == 5
    positive = [(b.users.item(), b.items.item()) for b in source.batches() if b.labels]
    assert sorted(positive) == [(7, 6), *((8, item) for item in range(1, 120)), (9, 6)]


def test_too_few_ratings_are_an_error() -> None:
    few = Ratings(*(np.arange(5) for _ in range(3)))
    with pytest.raises(RatingsError, match="5 ratings of 5 items"):
        LeaveOneOut(few, 0, 1)


def test_the_figures_are_those_of_the_paper() -> None:
    scores = torch.zeros(4, 100)
    scores[:, 0] = 1  # place 1
    scores[1, 1:3] = 2  # place 3
    scores[2, 1:11] = 2  # place 11
    scores[3] = 1  # all equal
    found = rank(scores)
    assert found.hits == 0.5
    assert found.gain == pytest.approx((1 + math.log(2) / math.log(4)) / 4)
    with pytest.raises(ValueError, match="NaN"):
        rank(torch.full((1, 100), math.nan))


def test_the_models_are_those_of_the_paper() -> None:
    users, items = torch.randn(3, 40), torch.randn(3, 40)
    net = model.NeuMF(8)
    assert [each.weight.shape for each in net.mlp[::2]] == [(32, 64), (16, 32), (8, 16)]
    hidden = torch.cat([users[:, 8:], items[:, 8:]], dim=1)
    for layer in net.mlp[::2]:
        hidden = (hidden @ layer.weight.T + layer.bias).relu()
    expected = torch.cat([users[:, :8] * items[:, :8], hidden], dim=1) @ net.head.weight[0] + net.head.bias
    torch.testing.assert_close(net(users, items), expected)
    small = model.GMF(8)
    product = (users[:, :8] * items[:, :8]) @ small.head.weight[0] + small.head.bias
    torch.testing.assert_close(small(users[:, :8], items[:, :8]), product)


@pytest.mark.usefixtures("forked_programs")
def test_two_trainers_learn_as_much_as_one_process(tmp_path: Path) -> None:
    path = tmp_path / "ratings.dat"
    users, items, times = planted.draw(users=150, items=300).ratings
    path.write_text("".join(f"{u},{i},4.0,{t}\n" for u, i, t in zip(users, items, times, strict=True)))
    command = [sys.executable, "-m", "examples.recommender", "--ratings", str(path), "--steps", "31"]
    command += ["--model", "gmf", "--lr", "0.01", "--table-lr", "0.02", "--tolerance", "0.1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert_announced(done.stdout, until="step 3/31")
    assert not [*tmp_path.glob("ratings.[jp]*")], "a short run leaves the files of a full one alone"
    report = json.loads((tmp_path / "short" / "ratings.json").read_text())
    (step, (hits, _)), (_, (expected, _)) = report["course"][-1], report["reference"][-1]
    assert step == 31
    # Which of two trainers is ahead is left to chance; one of ten hits is a guess.
    assert hits > expected - 0.1 and hits > 0.15
    assert f"HR@10 {hits:.4f}" in done.stdout and "step 31/31" in done.stdout
    assert (tmp_path / "short" / "ratings.png").stat().st_size > 10_000


def test_bad_arguments_and_files_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--ratings", "--factors", "0"])
    assert ended.value.code == 2
    assert main([f"--ratings={tmp_path / 'missing'}", "--out", str(tmp_path)]) == 1
    assert "missing" in capsys.readouterr().out
