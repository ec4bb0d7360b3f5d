"""Tests that a loop goes through all batches, and shows how it goes on."""

from __future__ import annotations

import io
import sys
import types
from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_service.server import Server
from tests.ps_service.clock import Clock
from tests.trainer_client.reporting.test_meter import stepped
from trainer_client.reporting.progress import Lines, Progress, RichBar, bar_for


class Shown:
    """A bar that remembers what it was given."""

    def __init__(self, total: int | None = None, description: str = "") -> None:
        self.total, self.description = total, description
        self.states: list[tuple[int, str]] = []
        self.closed = 0

    def show(self, done: int, numbers: str) -> None:
        self.states.append((done, numbers))

    def close(self) -> None:
        self.closed += 1


def shown_by(batches: Any, total: int | None = None, **more: Any) -> tuple[Progress[Any], Shown]:
    bar = Shown()
    return Progress(batches, total, "", (), lambda *_: bar, **more), bar


def test_every_batch_comes_and_the_last_state_is_shown() -> None:
    progress, bar = shown_by([5, 6, 7])
    found = []
    for batch in progress:
        found.append(batch)
        progress.step(stepped(1), loss=0.5)
    assert found == [5, 6, 7]
    done, numbers = bar.states[-1]
    assert done == 3 and "loss 0.5, staleness 1" in numbers and bar.closed == 1


async def test_asynchronous_batches_come_and_others_too() -> None:
    async def batches() -> AsyncIterator[int]:
        yield 1
        yield 2

    for each in (batches(), [1, 2]):
        progress, bar = shown_by(each)
        assert [batch async for batch in progress] == [1, 2]
        assert bar.states[-1][0] == 2 and bar.closed == 1
    progress, _ = shown_by(batches())
    with pytest.raises(TypeError, match="use `async for`"):
        list(progress)


def test_a_loop_that_is_left_closes_its_bar() -> None:
    progress, bar = shown_by(range(10))
    with pytest.raises(ZeroDivisionError):
        for batch in progress:
            _ = 1 / (batch - 2)
    # The generator of the loop is freed with its frame.
    assert bar.states[-1][0] == 2 and bar.closed == 1


def test_states_are_shown_ten_times_a_second_at_most() -> None:
    clock = Clock()
    progress, bar = shown_by(range(100), clock=clock)
    for _ in progress:
        clock.now += 0.01
    assert 9 <= len(bar.states) <= 12


def test_callbacks_get_the_numbers_of_every_step() -> None:
    seen: list[tc.StepNumbers] = []
    progress = tc.progress([1, 2, 3], callbacks=[seen.append])
    for _ in progress:
        progress.step(stepped(), loss=torch.tensor(0.5))
    assert [each.step for each in seen] == [1, 2, 3]


def test_the_number_of_batches_is_their_length_or_is_given() -> None:
    assert len(tc.progress([1, 2])) == 2
    assert len(tc.progress(iter([1, 2]), total=7)) == 7
    with pytest.raises(TypeError, match="give total="):
        len(tc.progress(iter([1, 2])))
    assert repr(tc.progress([1, 2])) == "<Progress 0 of 2 batches>"


def test_without_a_terminal_there_is_a_line_now_and_then() -> None:
    clock, out = Clock(), io.StringIO()
    lines = Lines(1000, "epoch 1", out, clock)
    for done in range(1, 26):
        clock.now += 1
        lines.show(done, f"loss {done}")
    lines.close()
    lines.close()
    assert out.getvalue().splitlines() == [
        "epoch 1: 10/1,000, loss 10",
        "epoch 1: 20/1,000, loss 20",
        "epoch 1: 25/1,000, loss 25",
    ]


def test_a_terminal_has_a_bar_of_rich_else_of_tqdm_else_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(bar_for(3, ""), Lines), "there is no terminal"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    bar = bar_for(3, "epoch")
    assert isinstance(bar, RichBar)
    bar.show(2, "[bold]loss[/bold] 1")
    bar.close()
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    made: dict[str, Any] = {}

    class Tqdm:
        def __init__(self, total: int, desc: str | None) -> None:
            self.n = 0
            made.update(total=total, desc=desc, bar=self)

        def set_postfix_str(self, text: str, refresh: bool) -> None:
            made["text"] = text

        def update(self, by: int) -> None:
            self.n += by

        def close(self) -> None:
            made["closed"] = True

    module = types.ModuleType("tqdm.auto")
    module.tqdm = Tqdm  # type: ignore[attr-defined]  # as in the real one
    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", module)
    other = bar_for(3, "epoch")
    other.show(2, "loss 1")
    other.close()
    assert (made["total"], made["desc"], made["text"], made["bar"].n, made["closed"]) == (3, "epoch", "loss 1", 2, True)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    assert isinstance(bar_for(3, ""), Lines)


def test_only_the_kernel_of_a_notebook_has_a_bar_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ipython = types.ModuleType("IPython")
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    for shell, kind in (None, Lines), (object(), Lines), (types.SimpleNamespace(kernel=object()), RichBar):
        monkeypatch.setattr(ipython, "get_ipython", lambda shell=shell: shell, raising=False)
        bar = bar_for(3, "")
        assert isinstance(bar, kind)
        bar.close()


async def test_a_training_shows_its_loss_and_staleness(owner: Server, ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 3, 1, name="net")
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    progress, bar = shown_by([torch.ones(2, 3)] * 3)
    async for x in progress:
        async with ps.context() as ctx:
            loss = (await net(x)).square().mean()
            await ctx.backward(loss)
            progress.step(await opt.step(ctx), loss=loss)
    assert bar.states[-1][0] == 3 and "loss " in bar.states[-1][1] and "staleness 0" in bar.states[-1][1]
    assert repr(opt) == "<DistributedOptimizer torch.optim.sgd.SGD 'net.optimizer' on ps0>"
    assert repr(net) == f"<RemoteModule {net.ref}, torch.nn.Linear 'net'>"
    await ps.close()
    assert repr(net).endswith(", torch.nn.Linear 'net', closed>") and repr(opt).endswith(" on ps0 (closed)>")


def test_numbers_that_a_step_reports_are_shown_too() -> None:
    found = []
    progress = Progress([1], None, "", (found.append,), lambda *_: Shown())
    of_round = tc.Stepped(
        {"ps0": 1}, reported={"loss": 0.25, "samples": 8, "host": {"1f0c2a9e": "gpu-3"}, "hits": torch.ones(2)}
    )
    numbers = progress.step(of_round)
    assert found == [numbers] and numbers.values == {"loss": 0.25, "samples": 8}
    assert "loss 0.25, samples 8" in repr(progress)
    assert progress.step(of_round, loss=0.5).values == {"loss": 0.5, "samples": 8}
