"""Which codec a parameter gets."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ps_wire.compression.choice import MIN_NUMEL, Choice
from ps_wire.compression.registry import BF16, FP16, TopK, Zstd, register_codec
from ps_wire.errors import InvalidArgumentError
from tests.ps_wire.compression.test_codecs import Mean

LARGE = torch.zeros(MIN_NUMEL)


def test_one_codec_is_for_all() -> None:
    assert Choice(TopK(0.1)).codec_for("any.name", LARGE) == TopK(0.1)
    assert Choice(None).codec_for("any.name", LARGE) is None
    assert Choice().codec_for("any.name", LARGE) is None


def test_the_first_pattern_that_matches_decides() -> None:
    choice = Choice(
        {
            "default": FP16(),
            "embedding.*": None,
            "*.bias": BF16(),
            "embedding.weight": TopK(0.1),
            "layer?.[wv]*": Zstd(),
        }
    )
    assert choice.codec_for("embedding.weight", LARGE) is None
    assert choice.codec_for("embedding.bias", LARGE) is None
    assert choice.codec_for("layer.bias", LARGE) == BF16()
    assert choice.codec_for("layer1.weight", LARGE) == Zstd()
    assert choice.codec_for("layer11.weight", LARGE) == FP16()
    assert choice.codec_for("Embedding.weight", LARGE) == FP16()
    assert choice.codec_for("default", LARGE) == FP16()
    turned = Choice({"embedding.weight": TopK(0.1), "embedding.*": None})
    assert turned.codec_for("embedding.weight", LARGE) == TopK(0.1)
    assert turned.codec_for("other", LARGE) is None


def test_small_tensors_are_sent_as_they_are() -> None:
    choice = Choice({"w": FP16(), "default": TopK(0.1)}, min_numel=10)
    for name in ("w", "other"):
        assert choice.codec_for(name, torch.zeros(9)) is None
        assert choice.codec_for(name, torch.zeros(2, 5)) is not None
    assert Choice(FP16(), min_numel=0).codec_for("w", torch.zeros(0)) == FP16()
    rows = torch.sparse_coo_tensor([[1]], torch.ones(1, 9), (1000, 9), check_invariants=True)
    assert Choice(FP16(), min_numel=10).codec_for("w", rows) is None
    assert Choice(FP16(), min_numel=9).codec_for("w", rows) == FP16()


def test_what_a_codec_does_not_take_is_sent_as_it_is() -> None:
    choice = Choice({"ids": Zstd(), "default": TopK(0.1)}, min_numel=1)
    assert choice.codec_for("w", torch.eye(3).to_sparse()) is None
    assert choice.codec_for("w", torch.zeros(3, dtype=torch.int64)) is None
    assert choice.codec_for("ids", torch.zeros(3, dtype=torch.int64)) == Zstd()


def test_registered_names_stand_for_their_codecs() -> None:
    register_codec("mean", Mean)
    assert repr(Choice({"a": "mean", "default": FP16()})) == (
        f"Choice({{'a': Own(name='mean'), 'default': FP16()}}, min_numel={MIN_NUMEL})"
    )


@pytest.mark.parametrize("bad", ["nothing", 5, TopK, {"a": TopK}, {1: FP16()}, {"a": "nothing"}, [FP16()]], ids=repr)
def test_anything_else_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        Choice(bad)
    with pytest.raises(InvalidArgumentError):
        Choice(FP16(), min_numel=-1)
