"""Tests what programs of the examples say before they begin, where their files go, and how they end early."""

from __future__ import annotations

import importlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import examples
from examples.digits import tutorial
from examples.digits.settings import Settings as Digits
from examples.pipeline.settings import Settings as Pipeline
from examples.plan import Plan, shorter
from examples.recommender.ratings.settings import Settings as Ratings
from examples.recommender.settings import Settings as Recommender
from examples.recommender.settings import is_short
from examples.shielded import shielded
from tests.forking.process import Forking
from trainer_client.rpc import joining

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = (
    "batched_updates", "cartpole", "digits", "hybrid_ddp", "mpi_ps", "pipeline", "recommender", "token_vectors",
    "word_language_model",
)  # fmt: skip
GOING_ON = ("serving",)
"""Those that go on until they are ended."""

OTHERS = ("recommender.reference", "recommender.ratings.job", "word_language_model.trace")


@pytest.mark.parametrize("program", [*(f"{name}.__main__" for name in PROGRAMS), *OTHERS])
def test_the_readme_says_how_long_it_takes_as_the_program_does(program: str) -> None:
    takes = importlib.import_module(f"examples.{program}").TAKES
    assert re.search(r" to .*(second|minute)s", takes), "a range"
    readme = (ROOT / "examples" / program.partition(".")[0] / "README.md").read_text()
    assert takes.partition(",")[0] in re.sub(r"\s+", " ", readme)


def test_every_example_is_one_of_these() -> None:
    assert {path.parent.name for path in (ROOT / "examples").glob("*/__main__.py")} == {*PROGRAMS, *GOING_ON}


def test_a_short_run_writes_elsewhere_and_says_so() -> None:
    full, short = (Plan("one to two minutes", short, Path("out")) for short in (False, True))
    assert str(full) == "with the defaults this takes one to two minutes on two idle cores"
    assert full.folder == Path("out")
    assert str(short).endswith("; it is a short run, whose files go to out/short")
    assert short.folder == Path("out/short")
    assert (
        str(Plan("ten to twenty seconds", True))
        == "with the defaults this takes ten to twenty seconds on two idle cores"
    )


def test_a_run_is_short_if_it_has_less_to_do_than_the_defaults() -> None:
    assert not shorter(Pipeline(), "rounds", "width")
    assert shorter(Pipeline(rounds=9), "rounds", "width") and not shorter(Pipeline(rounds=11), "rounds", "width")
    assert not shorter(Pipeline(width=9), "rounds")
    assert shorter(Ratings(steps=10_000), "epochs", "steps"), "by default it takes all"
    assert shorter(Digits(epochs=1), "epochs") and not shorter(Digits(), "epochs")
    assert is_short(Recommender(steps=799)) and not is_short(Recommender(steps=800)) and not is_short(Recommender())
    assert is_short(Recommender(steps=5000, data=Path("clicks"))) and not is_short(Recommender(data=Path("clicks")))


def test_processes_that_start_shielded_do_not_see_ctrl_c() -> None:
    shown = [sys.executable, "-S", "-c", "import signal as s; print(s.SIGINT in s.pthread_sigmask(s.SIG_BLOCK, []))"]
    with shielded():
        inside = subprocess.run(shown, capture_output=True, text=True, check=True)
    assert inside.stdout == "True\n"
    assert subprocess.run(shown, capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_first_process_of_multiprocessing_does_not_see_ctrl_c_either() -> None:
    shown = "import signal as s; print(s.SIGINT in s.pthread_sigmask(s.SIG_BLOCK, []), flush=True)"
    program = f"""
import multiprocessing
from examples.shielded import shielded
with shielded():
    process = multiprocessing.get_context("spawn").Process(target=exec, args=({shown!r},))
    process.start()
process.join()
{shown}
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "True\nFalse\n"


def test_ctrl_c_in_a_shielded_block_comes_after_it() -> None:
    finished = False
    with pytest.raises(KeyboardInterrupt), shielded():
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        finished = True
    assert finished


def test_all_processes_of_examples_start_shielded_or_in_a_session_of_their_own() -> None:
    starts = re.compile(r"multiprocessing\.spawn\(|(?<!psutil\.)Process\(|Popen\(|create_subprocess_exec\(")
    launching = ROOT / "ps_service" / "launch" / "process.py"
    files = [path for path in [*(ROOT / "examples").rglob("*.py"), launching] if starts.search(path.read_text())]
    assert launching in files and len(files) >= 6
    for path in files:
        text = path.read_text()
        assert "with shielded():" in text or "start_new_session=True" in text, path


@pytest.mark.parametrize(
    ("torch", "code", "told"),
    [
        (
            "raise ModuleNotFoundError(name='torch')",
            1,
            "this example needs torch, which is not installed: `make setup`",
        ),
        ("import os; os.kill(os.getpid(), 2)", -signal.SIGINT, "stopped; nothing is left running"),
        ("raise ModuleNotFoundError(name='examples.no')", 1, "Traceback"),
    ],
    ids=["missing", "ctrl-c", "ours"],
)
def test_a_program_that_cannot_begin_says_why_in_one_line(tmp_path: Path, torch: str, code: int, told: str) -> None:
    (tmp_path / "torch.py").write_text(torch)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "examples.digits"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == code
    assert (done.stdout + done.stderr).startswith(told)
    assert (done.stdout + done.stderr).count("\n") == 1 or told == "Traceback"


def test_only_programs_of_the_examples_end_that_way() -> None:
    assert sys.excepthook is not examples.tell


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize("program", ["batched_updates", "mpi_ps", "recommender"])
def test_ctrl_c_ends_all_processes_and_says_one_line(tmp_path: Path, program: str, forking: Forking) -> None:
    before = forking.children()
    command = [sys.executable, "-m", f"examples.{program}"]
    if program != "batched_updates":
        command += ["--out", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        assert running.stdout is not None
        while not running.stdout.readline().startswith("with the defaults this takes "):
            assert running.poll() is None
        # This program and one that it has started. Where it is before that, a signal may come at any line of asyncio's.
        while len(forking.children() - before) < 2:
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        output = running.stdout.read()
        assert output.splitlines()[-1] == "stopped; nothing is left running", output
        assert "Traceback" not in output
        assert running.wait(60) == 130


@pytest.mark.usefixtures("forked_programs")
def test_a_port_in_use_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_SECOND_KEEPER_SECONDS", 0.2)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError) as caught:
            tutorial.main(["--rank=0", "--world-size=2", "--master-addr=127.0.0.1", f"--master-port={port}"])
    assert str(caught.value) == f"cannot listen on 127.0.0.1:{port}: is another owner, or another program, there?"


def test_only_what_uses_nothing_but_grpc_speaks_of_grpc() -> None:
    for readme in (ROOT / "examples").glob("*/README.md"):
        pages = [readme, *readme.parent.rglob("*.py")]
        if any(re.search(r"\b(over|only through|through) gRPC|gRPC only", page.read_text()) for page in pages):
            assert any("shared_memory=False, direct=False" in page.read_text() for page in pages), readme
