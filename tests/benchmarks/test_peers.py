"""Runs the comparison with other libraries on those that need no installation; all processes end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.peers import environments, report
from benchmarks.peers.__main__ import ROWS, main
from benchmarks.peers.environments import NotInstalled, prepare
from benchmarks.peers.fleet import PEERS
from tests.conftest import ROOT

CONVNETS = ("convnet_step", "convnet_step_overlapped")
WHOLE = ("linears_step", "linears_step_whole", "small_recommender_whole")


@pytest.mark.usefixtures("forked_programs")
def test_grpc_with_pickle_gives_the_results_of_local_torch(tmp_path: Path) -> None:
    rows = "echo_4B,emb_step_,convnet,linears,recommender"
    command = [sys.executable, "-m", "benchmarks.peers", "--quick", "--peers", "grpc_pickle", "--rows", rows]
    before = set(psutil.Process().children(recursive=True))
    done = subprocess.run([*command, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "peers.json").read_text())
    assert [row["name"] for row in found["rows"]] == [
        *("echo_4B", "emb_step_whole", "emb_step_zipf", *CONVNETS, *WHOLE)
    ]
    for row in found["rows"]:
        assert not row["errors"]
        assert min(row["results"][side] for side in ("ours", "ours_tcp", "grpc_pickle")) > 0
        assert row["faster"]["grpc_pickle"].keys() == {"ours", "ours_tcp"}
    assert "| echo_4B | us |" in report.block(found)
    assert not set(psutil.Process().children(recursive=True)) - before


def test_rows_are_those_that_were_promised() -> None:
    assert [row.name for row in ROWS] == [
        *("echo_4B", "echo_64KiB", "echo_1MiB", "echo_16MiB", "emb_forward", "emb_step"),
        *("emb_step_whole", "emb_forward_zipf", "emb_step_zipf", *CONVNETS, *WHOLE, "trainers_4"),
    ]


def test_every_peer_but_grpc_has_pinned_requirements() -> None:
    for peer in {each.environment or name for name, each in PEERS.items()} - {"grpc_pickle"}:
        lines = (environments.REQUIREMENTS / f"{peer}.txt").read_text().splitlines()
        assert lines[0].startswith(peer)
        assert all(line.count("==") == 1 for line in lines)
        assert "torch==2.13.0" in lines


def test_a_peer_that_cannot_be_installed_tells_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    monkeypatch.setattr(environments, "FOLDER", tmp_path / "made")
    monkeypatch.setattr(environments, "REQUIREMENTS", tmp_path)
    (tmp_path / "nothing.txt").write_text("./no-such-folder\n")
    # Stands for the interpreter that makes the environment: to install pip anew there takes seconds.
    python, here = tmp_path / "python", tmp_path / "made" / "nothing" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nmkdir -p "{here.parent}"\nln -s "{python}.pip" "{here}"\n')
    python.with_suffix(".pip").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    for each in (python, python.with_suffix(".pip")):
        each.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(NotInstalled, match="no-such-folder"):
        prepare("nothing", lambda _: None)
    assert not (tmp_path / "made" / "nothing" / ".ready").exists()


def test_a_missing_peer_is_no_win() -> None:
    row = {"name": "echo_4B", "unit": "us", "results": {"ours": 1.0}, "faster": {}, "errors": {}}
    machine = {"cpu": "x", "cores": 2, "memory_gib": 4, "kernel": "k", "python": "3.11", "torch": "2", "grpcio": "1"}
    machine |= {"torch_threads": 1, "load_before": 0.1}
    whole = {"machine": machine, "seconds": 1, "rounds": 1, "quick": False, "rows": [row]}
    text = report.block(whole | {"versions": {}, "missing": {"ray": "not installed: no wheel"}})
    assert "| echo_4B | us | 1 | - | missing | - / - | - |" in text
    assert "- Ray actors: not installed: no wheel" in text


def test_an_unknown_peer_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--peers", "carrier_pigeons"])
    assert "there is no peer carrier_pigeons" in capsys.readouterr().err
