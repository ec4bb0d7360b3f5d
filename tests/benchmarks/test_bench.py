"""Runs the benchmarks with real processes: results are checked, files have their form, all processes end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor

from benchmarks import figures, work
from benchmarks.harness import difference, loss_difference
from benchmarks.rows import ROWS, choose
from benchmarks.work import Pause, Steps

ROOT = Path(__file__).resolve().parents[2]
MARK = "BENCH_TEST_MARK"
"""In the environment of every process that a test starts, and so of all their children."""

Start = Callable[..., subprocess.Popen[str]]


def left(mark: str) -> list[psutil.Process]:
    """Processes that carry the mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    """Polls until a condition holds."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `python -m MODULE ARGUMENTS`; ends what is left of it."""
    with ExitStack() as stack:

        def begin(module: str, *arguments: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-m", module, "--quick", "--out", str(tmp_path / "out"), *arguments],
                cwd=ROOT,
                env=os.environ | {MARK: str(tmp_path)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                # The tests may have been started in the background of a shell, which ignores it.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
            return stack.enter_context(process)

        yield begin
        for process in left(str(tmp_path)):
            process.kill()


def check_steady(row: dict[str, Any]) -> None:
    """All sides took the steps that the row says, and each has a median, a range, and a ratio to ours."""
    sides = {"ours", "ours_tcp", "torch_rpc", "torch_rpc_tcp", "bare", "local"}
    assert set(row["per_turn"].items()) == {(side, 10) for side in sides}
    assert row["range"].keys() == sides and row["against"].keys() == sides - {"ours"}
    assert all(row["range"][side][0] <= row[side] <= row["range"][side][1] for side in sides)
    assert all(each["min"] <= each["median"] <= each["max"] for each in row["against"].values())
    # More samples a second are better, so a side with half of our rate takes twice our time.
    assert row["against"]["bare"]["median"] == pytest.approx(row["ours"] / row["bare"], rel=0.01)


@pytest.mark.usefixtures("forked_programs")
def test_some_rows(start: Start, tmp_path: Path) -> None:
    names = ["echo_4B", "small_recommender_pipelined", "steady_neumf_calls", "replica_small_sync_2"]
    process = start("benchmarks", "--rows", ",".join(names), "--skip", "pipelined_2", "--rounds", "1")
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert "echo_4B" in output
    report = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert report["machine"]["torch"] == torch.__version__
    assert [row["name"] for row in report["rows"]] == names
    for row in report["rows"]:
        assert not row["errors"]
        assert row["unit"] in ("us", "ms", "steps/s", "k samples/s")
        assert row["rounds"] == 1
        torchs = ("gloo",) if row["name"].startswith("replica") else ("torch_rpc", "torch_rpc_tcp")
        for name in ("ours", "ours_tcp", *torchs, "speedup", "speedup_tcp"):
            assert row[name] > 0
        assert row["spread"]["speedup"]["min"] <= row["speedup"] <= row["spread"]["speedup"]["max"]
    assert report["rows"][0]["local"] is None
    (steady,) = [row for row in report["rows"] if row["name"].startswith("steady")]
    for row in report["rows"][1:]:
        assert row is steady or min(row["local"], row["local_paused"], row["over_paused"]) > 0
    check_steady(steady)
    assert all("bare program" in text for text in (output, figures.block(report)))
    assert (tmp_path / "out" / "bench-steady.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out" / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert "| echo_4B | us |" in figures.block(report) and "| gloo: " in figures.block(report)
    wait_until(lambda: not left(str(tmp_path)))


@pytest.mark.usefixtures("forked_programs")
def test_rows_of_durability(start: Start, tmp_path: Path) -> None:
    process = start("benchmarks", "--rows", "step_durable", "--rounds", "1")
    output, _ = process.communicate()
    assert process.returncode == 0, output
    report = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert [row["name"] for row in report["rows"]] == ["step_durable", "step_durable_10M", "step_durable_table"]
    sides = {"durable_off", "durable_interval", "durable_always"}
    for row in report["rows"]:
        assert not row["errors"] and row["range"].keys() == sides | {"local"}
        assert row["against"].keys() == row["range"].keys() - {"durable_off"}
        assert row["against"]["durable_always"]["median"] > 0
    assert report["flush_ms"].keys() == {"4 KiB", "1 MiB", "40 MB"} and min(report["flush_ms"].values()) > 0
    shown = figures.block(report)
    for text in (output, shown):
        assert "step_durable_off" in text and "step_durable_interval" in text and "step_durable_always" in text
        assert "flushed (fdatasync)" in text
    assert "| row | unit | ours |" not in shown and "steady" not in shown.replace("steady_neumf", "")
    wait_until(lambda: not left(str(tmp_path)))


@pytest.mark.usefixtures("forked_programs")
def test_rows_of_tls(start: Start, tmp_path: Path) -> None:
    process = start("benchmarks", "--rows", "tls_4B", "--rounds", "1")
    output, _ = process.communicate()
    assert process.returncode == 0, output
    report = json.loads((tmp_path / "out" / "bench.json").read_text())
    for row in report["rows"]:
        assert not row["errors"] and min(row["over_plain"], row["over_plain_grpc"]) > 0
    assert min(report["cipher_gb_s"].values()) > 0 and report["access_us"]["with_tokens"] > 0
    shown = figures.block(report)
    for text in (output, shown):
        assert "tls_4B, direct" in text and "tls_4B, grpc" in text and "OpenSSL alone" in text
        assert "The check of the role" in text
    assert "| row | unit | ours |" not in shown
    wait_until(lambda: not left(str(tmp_path)))


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_signal_leaves_no_process(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    process = start("benchmarks", "--rows", "table_grow", "--rounds", "1000")
    # The owner and the trainer of each of two sides, beside the harness itself.
    wait_until(lambda: len(left(str(tmp_path))) == 5)
    process.send_signal(number)
    process.communicate()
    assert process.returncode == (-number if number == signal.SIGKILL else 130)
    wait_until(lambda: not left(str(tmp_path)))


@pytest.mark.usefixtures("forked_programs")
def test_scale(start: Start, tmp_path: Path) -> None:
    process = start("benchmarks.scale", "--series", "sessions")
    output, _ = process.communicate()
    assert process.returncode == 0, output
    report = json.loads((tmp_path / "out" / "bench-scale.json").read_text())
    assert [series["name"] for series in report["series"]] == ["sessions_idle", "sessions_active"]
    assert all(point["ms"] > 0 for series in report["series"] for point in series["points"])
    assert "idle_session_kib" in report["memory"]
    assert (tmp_path / "out" / "bench-scale.png").read_bytes().startswith(b"\x89PNG")
    wait_until(lambda: not left(str(tmp_path)))


def test_rows_are_those_that_were_promised() -> None:
    assert [row.name for row in ROWS] == [
        *("empty_call", "empty_call_async", "echo_4B", "echo_64KiB", "echo_1MiB", "echo_16MiB", "echo_64MiB"),
        *(
            "calls_in_flight",
            "emb_forward",
            "emb_step",
            "table_step_zipf",
            "table_step_uniform",
            "table_grow",
            "tables_26",
        ),
        "convnet_step",
        *("replica_step", "replica_small", "rnn_step"),
        *("small_recommender", "small_recommender_whole", "small_recommender_pipelined"),
        *("steady_neumf", "steady_neumf_calls", "steady_modules_3"),
        *("steady_transformer", "steady_lstm", "steady_linears"),
        *("small_recommender_2", "small_recommender_pipelined_2", "steady_neumf_2"),
        *("replica_sync_2", "replica_small_sync_2", "trainers_4", "owners_2", "table_owners_2"),
        "steady_transformer_large",
        *("step_durable", "step_durable_10M", "step_durable_table"),
        *("tls_4B", "tls_16MiB", "tls_neumf"),
    ]
    assert [row.name for row in choose(["64", "rnn"])] == ["echo_64KiB", "echo_64MiB", "rnn_step"]
    assert [row.name for row in choose(["steady"], skipped=["neumf", "modules", "large"])] == [
        *("steady_transformer", "steady_lstm", "steady_linears"),
    ]
    with pytest.raises(ValueError, match="no row"):
        choose(["nothing"])


def test_a_difference_is_told() -> None:
    right = {"weight": torch.ones(3), "losses": torch.zeros(2)}
    assert not difference(dict(right), right)
    assert "weight" in difference(right | {"weight": torch.tensor([1.0, 1.0, 1.001])}, right)
    assert "weight" in difference(right | {"weight": torch.tensor([1.0, 1.0, torch.nan])}, right)
    assert "shape" in difference(right | {"losses": torch.zeros(3)}, right)
    assert "instead of" in difference({"weight": torch.ones(3)}, right)


def test_racing_trainers_learn_as_much_as_local_torch() -> None:
    expected = torch.linspace(0.7, 0.1, 40)
    assert not loss_difference(expected.roll(1), expected)
    assert not loss_difference(expected / 2, expected)
    assert "local torch" in loss_difference(torch.full((40,), 0.7), expected)
    assert "local torch" in loss_difference(torch.full((40,), torch.nan), expected)
    assert "local torch" in loss_difference(expected + 0.04, expected)
    assert not loss_difference(expected + 0.04, expected, tolerance=0.2)
    assert "39 losses" in loss_difference(expected[1:], expected)


def test_pauses_are_not_part_of_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0

    def go_by(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(work, "perf_counter", lambda: now)
    monkeypatch.setattr(work, "time", SimpleNamespace(sleep=go_by))
    pause = Pause(0.5)

    def step(x: Tensor, y: Tensor) -> Tensor:
        pause()
        go_by(0.25)
        return x.sum() + y

    steps = Steps(step, [(torch.ones(2), torch.ones(()))], dict, pause)
    assert steps.turn(3) == 3 * 0.25
    assert pause.seconds == 3 * 0.5
    assert steps.result()["losses"].tolist() == [3.0] * 3


def test_figures_go_between_the_markers(tmp_path: Path) -> None:
    readme, source = tmp_path / "README.md", tmp_path / "bench.json"
    readme.write_text(f"before\n{figures.BEGIN}\nold\n{figures.END}\nafter\n")
    machine = {"cpu": "x", "cores": 2, "memory_gib": 4, "kernel": "k", "python": "3.11", "torch": "2", "grpcio": "1"}
    machine |= {"torch_threads": 1, "load_before": 0.1}
    source.write_text(json.dumps({"machine": machine, "seconds": 1, "quick": False, "rows": []}))
    figures.rewrite(source, readme)
    figures.rewrite(source, readme)
    text = readme.read_text()
    assert text.startswith("before\n") and text.endswith("after\n")
    assert "old" not in text
    assert text.count("Measured on") == 1
    # The rows of replicas alone go between markers of their own.
    begin, end = figures.markers("replica")
    readme.write_text(f"{begin}\n{end}\n{figures.BEGIN}\nold\n{figures.END}\n")
    row = dict.fromkeys(("ours", "torch_rpc", "ours_tcp", "torch_rpc_tcp", "local", "local_paused"), 1.0)
    row |= {"name": "replica_step", "unit": "ms", "target": {}, "lost": {}, "errors": {}}
    row |= {"speedup": None, "speedup_tcp": None}
    row["spread"] = {"speedup": None, "speedup_tcp": None}
    report = {"machine": machine, "seconds": 1, "quick": False, "rows": [row]}
    source.write_text(json.dumps(report))
    figures.rewrite(source, readme)
    assert "| replica_step | ms | 1 | 1 | none |" in readme.read_text().partition(figures.BEGIN)[0]
    assert "old" in readme.read_text()
    readme.write_text("no markers")
    with pytest.raises(ValueError, match="no block"):
        figures.rewrite(source, readme)
