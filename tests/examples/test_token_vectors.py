"""Tests the vectors of identifiers: the text, its pairs, training beside local torch, and the whole program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

import trainer_client as tc
from examples.token_vectors.__main__ import main
from examples.token_vectors.corpus import id_of, identifiers, source_files, standard_library
from examples.token_vectors.loss import loss_of
from examples.token_vectors.neighbours import Neighbours
from examples.token_vectors.pairs import Pairs
from examples.token_vectors.settings import Settings
from examples.token_vectors.trainer import Vectors
from examples.token_vectors.vocabulary import Vocabulary, merged
from tests.examples.output import assert_announced

ROOT = Path(__file__).resolve().parents[2]


def test_the_text_is_identifiers_in_their_order(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text("def näme(self, x=1):\n    # not this\n    return self.x + 'nor this'\n")
    bad.write_text("a = b\n'''never ends")
    assert identifiers(good) == ["näme", "self", "x", "self", "x"]
    assert identifiers(bad) == ["a", "b"]
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "left_out.py").touch()
    assert source_files(tmp_path) == [bad, good]
    with pytest.raises(FileNotFoundError, match="no Python files"):
        source_files(tmp_path / "test" / "missing")


def test_ids_are_hashes_of_64_bits_that_every_process_computes_alike() -> None:
    assert id_of("self") == 7184761924116163360
    ids = [id_of(f"name{number}") for number in range(1000)]
    assert len(set(ids)) == 1000
    assert min(ids) < -(1 << 62) and max(ids) > 1 << 62


def test_the_standard_library_is_there() -> None:
    files = source_files(standard_library())
    assert len(files) > 300
    assert "dumps" in identifiers(next(path for path in files if path.parent.name == "json"))


def test_a_vocabulary_is_the_same_whoever_counts() -> None:
    first, second = {"a": 5, "b": 2}, {"c": 2, "a": 1}
    vocabulary = merged([first, {}, second])
    assert vocabulary.tokens == merged([second, first]).tokens == ["a", "b", "c"]
    assert vocabulary.counts.tolist() == [6, 2, 2]
    assert vocabulary.numbers(np.array([id_of("c"), id_of("a")])).tolist() == [2, 0]


def test_negatives_and_what_is_left_out_follow_the_paper() -> None:
    vocabulary = Vocabulary({"a": 10_000, "b": 1000, "c": 10})
    drawn = vocabulary.negatives(np.random.default_rng(0), (50_000,))
    shares = np.array([(drawn == each).mean() for each in vocabulary.ids])
    expected = vocabulary.counts**0.75
    np.testing.assert_allclose(shares, expected / expected.sum(), atol=0.01)
    share = 0.01 / (vocabulary.counts / 11_010)
    np.testing.assert_allclose(vocabulary.keep(0.01), np.minimum(share**0.5 + share, 1))


def test_pairs_stand_within_a_window_of_one_file() -> None:
    texts = [np.array([id_of(name) for name in text]) for text in ("abcdefgh", "xyz")]
    vocabulary = Vocabulary(Counter("abcdefghxyz"))
    near = {
        (text[i], text[j])
        for text in (each.tolist() for each in texts)
        for i in range(len(text))
        for j in range(max(i - 2, 0), min(i + 3, len(text)))
        if i != j
    }
    pairs = Pairs(texts, vocabulary, seed=0, batch_size=4, window=2, negatives=3, threshold=1.0)
    seen = Counter[tuple[int, int]]()
    for epoch in range(30):
        for centres, others, weights in pairs.batches(epoch):
            assert centres.shape == (4,) and others.shape == weights.shape == (4, 4)
            assert torch.equal(weights[:, 1:] == 0, others[:, 1:] == others[:, :1]) and weights[:, 0].all()
            seen.update(zip(centres.tolist(), others[:, 0].tolist(), strict=True))
    assert seen.keys() == near
    beside, further = (id_of("a"), id_of("b")), (id_of("a"), id_of("c"))
    assert seen[beside] > seen[further], "a window is narrower at random"
    one, other = ([batch.others for batch in pairs.batches(epoch)] for epoch in (0, 1))
    assert not torch.equal(torch.cat(one), torch.cat(other)[: sum(map(len, one))])
    assert all(torch.equal(*each) for each in zip(one, (b.others for b in pairs.batches(0)), strict=True))
    assert list(Pairs([], vocabulary, 0, 4).batches(0)) == []


def test_the_loss_is_that_of_the_paper() -> None:
    centres, others, weights = torch.randn(3, 5), torch.randn(3, 4, 5), torch.ones(3, 4)
    weights[1, 2] = 0
    expected = 0.0
    for v, beside, counts in zip(centres, others, weights, strict=True):
        expected -= functional.logsigmoid(beside[0] @ v).item()
        expected -= sum(
            (functional.logsigmoid(-(u @ v)) * w).item() for u, w in zip(beside[1:], counts[1:], strict=True)
        )
    assert loss_of(centres, others, weights).item() == pytest.approx(expected / 3, rel=1e-5)


async def test_one_trainer_with_two_owners_is_one_process_with_torch(pair: tc.Client) -> None:
    settings = Settings(dim=8, sightings=1, batch_size=64)
    vocabulary = Vocabulary(Counter({f"n{number}": 1 + 400 // (1 + number) for number in range(80)}))
    text = np.random.default_rng(0).choice(vocabulary.ids, 500, p=vocabulary.counts / vocabulary.counts.sum())
    vectors = await Vectors.attach(pair, settings)
    ids = torch.from_numpy(vocabulary.ids)
    tokens = (await vectors.tokens(ids)).clone().requires_grad_()
    contexts = (await vectors.contexts(ids)).clone().requires_grad_()
    assert not contexts.any() and 0 < tokens.abs().max() <= 0.5 / 8
    optimizer = torch.optim.Adagrad([tokens, contexts], lr=settings.lr)
    losses, expected = [], []
    for batch in Pairs([text], vocabulary, 0, settings.batch_size, threshold=1.0).batches(0):
        losses.append(await vectors.learn(batch))
        centres, others = (torch.from_numpy(vocabulary.numbers(part.numpy())) for part in batch[:2])
        loss = loss_of(tokens[centres], contexts[others], batch.weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert len(losses) > 20
    assert losses == pytest.approx(expected, rel=1e-4)
    assert losses[-1] < losses[0] - 0.3
    torch.testing.assert_close(await vectors.of(vocabulary.ids), tokens.detach(), rtol=1e-3, atol=1e-4)


async def test_what_comes_rarely_has_no_row(pair: tc.Client) -> None:
    settings = Settings(dim=8, sightings=5, max_rows=80, batch_size=32)
    vocabulary = Vocabulary(Counter({f"n{number}": 1 + 4000 // (1 + number) for number in range(400)}))
    text = np.random.default_rng(0).choice(vocabulary.ids, 300, p=vocabulary.counts / vocabulary.counts.sum())
    vectors = await Vectors.attach(pair, settings)
    for step, batch in enumerate(Pairs([text], vocabulary, 0, settings.batch_size, threshold=1.0).batches(0)):
        await vectors.learn(batch)
        sizes = await vectors.sizes()
        assert all(size <= 2 * settings.max_rows for size in sizes)
        if step == 3:
            assert sizes == [0, 0]
    assert min(sizes) > 0
    frequent = await vectors.of(vocabulary.ids[:3])
    assert frequent.abs().sum(1).all()


def test_neighbours_are_by_direction() -> None:
    vectors = torch.tensor([[1.0, 0.0], [5.0, 0.1], [-1.0, 0.0], [0.0, 1.0]])
    neighbours = Neighbours(["a", "b", "c", "d"], vectors)
    assert neighbours.nearest("a", 2) == ["b", "d"]
    assert neighbours.nearest("unknown") == []
    assert len(neighbours.nearest("a", 10)) == 3
    assert neighbours.found([("a", "b"), ("a", "c"), ("a", "e")], among=1) == (1, 2)


@pytest.mark.usefixtures("forked_programs")
def test_the_program_shows_neighbours(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.token_vectors", "--source", str(standard_library() / "http")]
    command += ["--epochs", "1", "--batch-size", "512", "--sightings", "3", "--max-rows", "500", "--dim", "16"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert_announced(done.stdout, until="files 5/5")
    assert os.listdir(tmp_path) == ["short"], "a short run leaves the files of a full one alone"
    report = json.loads((tmp_path / "short" / "token_vectors.json").read_text())
    assert report["losses"][-1] < report["losses"][0] - 0.3
    assert all(size <= 1000 for size in report["rows"][-1])
    assert report["different"] > 500 and report["tokens"] > 5_000
    assert len(report["neighbours"]["append"]) == 6
    for shown in ("append", f"{report['tokens']:,} identifiers"):
        assert shown in done.stdout
    assert (tmp_path / "short" / "token_vectors.png").stat().st_size > 10_000


def test_bad_arguments_and_directories_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--trainers", "0"])
    assert ended.value.code == 2
    assert main(["--source", str(tmp_path), "--out", str(tmp_path)]) == 1
    assert "no Python files" in capsys.readouterr().out
