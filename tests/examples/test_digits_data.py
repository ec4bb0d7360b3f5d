"""Tests that digits are read from IDX files, split, sharded and put into batches."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from examples.digits import data, idx
from examples.digits.data import Part

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def idx_file(values: np.ndarray, magic: int) -> bytes:
    """Returns an array of bytes in IDX form."""
    return struct.pack(f">{1 + values.ndim}I", magic, *values.shape) + values.astype(np.uint8).tobytes()


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """A directory with the four files, 40 digits to train on and 20 held out; half of the files are gzipped."""
    random = np.random.default_rng(0)
    for prefix, count in (("train", 40), ("t10k", 20)):
        images = idx_file(random.integers(0, 256, (count, 28, 28)), idx.IMAGES_MAGIC)
        labels = idx_file(np.arange(count) % 10, idx.LABELS_MAGIC)
        (tmp_path / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (tmp_path / f"{prefix}-labels-idx1-ubyte").write_bytes(labels)
    return tmp_path


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_reads_plain_and_gzipped_files(tmp_path: Path, suffix: str) -> None:
    images = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    pack = gzip.compress if suffix else bytes
    (tmp_path / (IMAGES + suffix)).write_bytes(pack(idx_file(images, idx.IMAGES_MAGIC)))
    (tmp_path / (LABELS + suffix)).write_bytes(pack(idx_file(np.array([7, 9]), idx.LABELS_MAGIC)))
    assert torch.equal(idx.read_images(tmp_path, IMAGES), torch.from_numpy(images).to(torch.uint8))
    assert torch.equal(idx.read_labels(tmp_path, LABELS), torch.tensor([7, 9]))


def test_reads_the_dotted_names_of_mirrors(tmp_path: Path) -> None:
    (tmp_path / "train-labels.idx1-ubyte").write_bytes(idx_file(np.array([3]), idx.LABELS_MAGIC))
    assert idx.read_labels(tmp_path, LABELS).tolist() == [3]


def test_names_the_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(idx.IdxError, match=f"no {IMAGES}"):
        data.load(tmp_path)


def test_refuses_a_wrong_magic_number(tmp_path: Path) -> None:
    (tmp_path / IMAGES).write_bytes(idx_file(np.zeros((1, 28, 28)), idx.LABELS_MAGIC))
    with pytest.raises(idx.IdxError, match=r"0x00000801.*0x00000803"):
        idx.read_images(tmp_path, IMAGES)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "header"),
        (idx_file(np.zeros((2, 28, 28)), idx.IMAGES_MAGIC)[:10], "header"),
        (idx_file(np.zeros((2, 28, 28)), idx.IMAGES_MAGIC)[:-1], "1568 bytes after its header, it holds 1567"),
        (idx_file(np.zeros((2, 28, 28)), idx.IMAGES_MAGIC) + b"x", "it holds 1569"),
        (struct.pack(">4I", idx.IMAGES_MAGIC, *[2**32 - 1] * 3), "should hold"),
        (gzip.compress(idx_file(np.zeros((2, 28, 28)), idx.IMAGES_MAGIC))[:-9], "whole gzip file"),
    ],
    ids=["empty", "half a header", "a byte less", "a byte more", "huge", "half a gzip file"],
)
def test_refuses_damaged_files(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / IMAGES).write_bytes(content)
    with pytest.raises(idx.IdxError, match=reason):
        idx.read_images(tmp_path, IMAGES)


def test_loads_the_four_files(mnist: Path) -> None:
    digits = data.load(mnist)
    assert digits.train.images.shape == (40, 1, 28, 28)
    assert digits.held_out.images.shape == (20, 1, 28, 28)
    assert digits.held_out.labels.tolist() == [*range(10)] * 2


def test_refuses_labels_that_do_not_fit(mnist: Path) -> None:
    (mnist / LABELS).write_bytes(idx_file(np.zeros(39), idx.LABELS_MAGIC))
    with pytest.raises(idx.IdxError, match="39 labels"):
        data.load(mnist)
    (mnist / LABELS).write_bytes(idx_file(np.full(40, 10), idx.LABELS_MAGIC))
    with pytest.raises(idx.IdxError, match="not digits"):
        data.load(mnist)


def test_the_scans_are_normalised_images() -> None:
    digits = data.load()
    for part in (digits.train, digits.held_out):
        assert part.images.shape == (len(part), 1, 28, 28)
        assert part.images.dtype == torch.float32
        assert part.labels.dtype == torch.int64
    assert len(digits.train) + len(digits.held_out) == 1797
    assert digits.train.images.mean().item() == pytest.approx(0, abs=1e-4)
    assert digits.train.images.std().item() == pytest.approx(1, abs=1e-4)


def test_loading_twice_gives_the_same() -> None:
    first, second = data.load(), data.load()
    assert torch.equal(first.held_out.images, second.held_out.images)
    assert torch.equal(first.train.labels, second.train.labels)


def test_the_split_is_complete_disjoint_and_fair() -> None:
    labels = torch.arange(1000) % 10
    train, held_out = data.split(labels)
    assert sorted(train.tolist() + held_out.tolist()) == list(range(1000))
    assert labels[held_out].bincount().tolist() == [20] * 10
    assert torch.equal(data.split(labels)[1], held_out)


def numbered(count: int) -> Part:
    """Digits whose only pixel and whose label say which they are."""
    numbers = torch.arange(count)
    return Part(numbers.float().view(-1, 1, 1, 1), numbers)


@pytest.mark.parametrize("trainers", [1, 2, 3])
def test_shards_are_complete_and_disjoint(trainers: int) -> None:
    part = numbered(20)
    shards = [data.shard(part, rank, trainers) for rank in range(trainers)]
    assert sorted(label for shard in shards for label in shard.labels.tolist()) == list(range(20))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    assert all(torch.equal(shard.images.flatten().long(), shard.labels) for shard in shards)


@pytest.mark.parametrize(("rank", "trainers"), [(-1, 2), (2, 2), (0, 0)])
def test_refuses_a_rank_outside(rank: int, trainers: int) -> None:
    with pytest.raises(ValueError, match="rank"):
        data.shard(numbered(20), rank, trainers)


def test_refuses_more_trainers_than_digits() -> None:
    with pytest.raises(ValueError, match="too few"):
        data.shard(numbered(1), 0, 2)


def test_every_epoch_deals_every_digit_in_a_fresh_order() -> None:
    dealt = list(data.batches(numbered(10), size=4, epochs=2, seed=1))
    assert [len(labels) for _, labels in dealt] == [4, 4, 2] * 2
    assert len(dealt) == data.count_batches(numbered(10), size=4, epochs=2)
    orders = [torch.cat([labels for _, labels in dealt[first : first + 3]]).tolist() for first in (0, 3)]
    assert [sorted(order) for order in orders] == [list(range(10))] * 2
    assert orders[0] != orders[1]


def test_a_seed_deals_the_same_batches_again() -> None:
    part = data.load().train[:50]
    first, again, other = (next(data.batches(part, 32, 1, seed)) for seed in (5, 5, 6))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[1], other[1])


def test_bending_by_nothing_changes_nothing() -> None:
    images = data.load().held_out.images[:5]
    bent = data.bend(images, torch.Generator(), amount=0)
    assert torch.allclose(bent, images, atol=1e-4)


def test_bending_keeps_the_paper_white() -> None:
    images = torch.full((3, 1, 28, 28), -0.7)
    images[:, :, 10:18, 10:18] = 2.0
    bent = data.bend(images, torch.Generator().manual_seed(0))
    assert not torch.equal(bent, images)
    assert torch.allclose(bent[:, :, 0, 0], torch.full((3, 1), -0.7))
    assert bent.min() >= -0.7 - 1e-5
    assert bent.max() <= 2.0 + 1e-5
