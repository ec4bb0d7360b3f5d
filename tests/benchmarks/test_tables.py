"""The benchmark of tables works. No timings."""

from __future__ import annotations

import pytest
import torch

from benchmarks import tables


def test_all_tables_are_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "BATCH", 2_000)
    monkeypatch.setattr(tables, "BAGS", 100)
    threads = torch.get_num_threads()
    try:
        tables.main(["--quick", "--rows", "1500000", "--rounds", "2"])
    finally:
        torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    assert printed.count("Zipf 1.2") == printed.count("even")
    assert "Map of ids" in printed
    assert "15,000" in printed
