"""The benchmark of codecs works. No timings."""

from __future__ import annotations

import pytest
import torch

from benchmarks import codecs
from ps_wire.compression.registry import CLASSES, FP16


def test_every_codec_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    codecs.main(["--numel", "50000", "--rounds", "2", "--threads", str(threads), "--markdown"])
    printed = capsys.readouterr().out
    assert {codec.name for codec in codecs.CODECS} == CLASSES.keys()
    assert all(f"| {codec} |" in printed for codec in codecs.CODECS)
    assert "| memory copy |" in printed


def test_bytes_on_the_wire_are_those_of_a_message() -> None:
    assert 2000 < codecs.on_the_wire(FP16().encode(torch.zeros(1000))) < 2100
