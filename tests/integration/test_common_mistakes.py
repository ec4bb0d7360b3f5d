"""Tests that common mistakes get an answer that says what to do instead: a table of mistakes and messages."""

from __future__ import annotations

import asyncio
import inspect
import re
import traceback
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
import torch
from torch.nn import functional as F
from torch.optim import lr_scheduler

import trainer_client as tc
from ps_service.server import Server
from tests.conftest import ROOT
from tests.training import training


class World(NamedTuple):
    """What a beginner has: a client, a module, its optimizer, an open pass, and a result that was not awaited."""

    ps: tc.Client
    net: tc.RemoteModule
    opt: tc.DistributedOptimizer
    ctx: tc.Context
    result: Any
    loss: torch.Tensor
    table: tc.Table


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def beginner() -> AsyncIterator[tc.Client]:
    async with training() as (_, ps):
        yield ps


@pytest_asyncio.fixture(loop_scope="module")
async def world(beginner: tc.Client) -> AsyncIterator[World]:
    ps = beginner
    net = await ps.module("torch.nn.Linear", 4, 3, name="net")
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    table = await ps.table("users", dim=2, max_rows=4)
    async with ps.context() as ctx:
        pending = net(torch.ones(2, 4))
        loss = (await net(torch.ones(2, 4))).sum()
        yield World(ps, net, opt, ctx, pending, loss, table)
        await pending


Mistake = Callable[[World], Any]


async def backward_twice(world: World) -> None:
    await world.ctx.backward(world.loss)
    await world.ctx.backward(world.loss)


BEFORE = "before it has come: `await` it first"

MISTAKES: list[tuple[str, Mistake, type[Exception], str]] = [
    # Results
    ("a method of a result", lambda w: w.result.sum(), AttributeError, f"no 'sum' {BEFORE}"),
    ("arithmetic", lambda w: w.result + 1, TypeError, BEFORE),
    ("arithmetic with a tensor", lambda w: torch.ones(3) * w.result, TypeError, "`await` it first"),
    ("a function of torch", lambda w: torch.sum(w.result), TypeError, "sum was given a result that may not have come"),
    ("a loss", lambda w: F.mse_loss(w.result, torch.ones(2, 3)), TypeError, "mse_loss was given a result"),
    ("an index", lambda w: w.result[0], TypeError, BEFORE),
    ("a loop", lambda w: list(w.result), TypeError, BEFORE),
    ("a number", lambda w: float(w.result), TypeError, BEFORE),
    ("waiting in the loop", lambda w: w.net(torch.ones(1, 4)).wait(), RuntimeError, "use await"),
    (
        "calling a module",
        lambda w: w.ps.module("torch.nn.Linear", 4, 3)(torch.ones(2, 4)),
        TypeError,
        f"called {BEFORE}",
    ),
    ("calling a table", lambda w: w.ps.table("users")([1]), TypeError, f"called {BEFORE}"),  # type: ignore[operator]
    # Passes and optimizers
    ("loss.backward()", lambda w: w.loss.backward(), RuntimeError, "call ctx.backward(loss) instead"),
    (
        "a backward for the second time",
        backward_twice,
        tc.errors.RemoteError,
        "backward through the graph a second time",
    ),
    ("a vector", lambda w: w.ctx.backward(w.loss.expand(2)), RuntimeError, "only for scalar outputs"),
    ("step without a pass", lambda w: w.opt.step(), tc.errors.InvalidArgumentError, "await opt.step(ctx)"),  # type: ignore[call-overload]
    ("step of a loss", lambda w: w.opt.step(w.loss), tc.errors.InvalidArgumentError, "takes the context of the pass"),  # type: ignore[call-overload]
    ("zero_grad", lambda w: w.opt.zero_grad(), AttributeError, "nothing to zero: gradients belong to a pass"),
    ("param_groups", lambda w: w.opt.param_groups, AttributeError, "opt.set_options(lr=…)"),
    (
        "another learning rate",
        lambda w: w.ps.optimizer(torch.optim.SGD, w.net.parameters(), lr=0.05),
        tc.errors.NameConflictError,
        "made with lr=0.1, not 0.05. Ask with the same arguments, change them for all trainers with set_options()",
    ),
    (
        "an optimizer of a module",
        lambda w: w.ps.optimizer(torch.optim.SGD, w.net, name="other", lr=0.1),  # type: ignore[arg-type]
        TypeError,
        "net.parameters()",
    ),
    ("a policy's name", lambda w: w.opt.set_policy("sync"), tc.errors.InvalidArgumentError, "one of Async(…), Sync(…)"),  # type: ignore[arg-type]
    (
        "a scheduler's short name",
        lambda w: w.ps.scheduler("StepLR", w.opt, 1),
        tc.errors.NotAllowedError,
        "write torch.optim.lr_scheduler.StepLR",
    ),
    # Handles
    ("a tensor of a handle", lambda w: w.net.weight, AttributeError, "`parameters()` gives handles to train"),
    ("moving a handle", lambda w: w.net.cuda(), AttributeError, "`ps-service serve --device`"),
    ("the gradient of a handle", lambda w: w.net.parameters()[0].grad, AttributeError, "`ctx.get_gradients()`"),
    (
        "clipping handles",
        lambda w: torch.nn.utils.clip_grad_norm_(w.net.parameters(), 1.0),  # type: ignore[arg-type]
        AttributeError,
        "`ctx.clip_grad_norm(…)`",
    ),
    (
        "an object for a class",
        lambda w: w.ps.module(torch.nn.Linear(2, 2)),
        tc.errors.InvalidArgumentError,
        "give the class",
    ),  # type: ignore[arg-type]
    ("a class that is not offered", lambda w: w.ps.module(World), tc.errors.NotAllowedError, "--import"),  # type: ignore[arg-type]
    (
        "a name that is not there",
        lambda w: w.ps.attach("nothing"),
        tc.errors.UnknownNameError,
        "under the name 'nothing'",
    ),
    ("a handle in a container", lambda w: torch.nn.Sequential(w.net), TypeError, "replica() makes a module of this"),  # type: ignore[arg-type]
    (
        "handles in an optimizer of this process",
        lambda w: torch.optim.SGD(w.net.parameters(), lr=0.1),  # type: ignore[arg-type]
        TypeError,
        "optimizer() of the client makes an optimizer there",
    ),
    # Typing errors
    (
        "a class",
        lambda w: w.ps.module("torch.nn.Liner", 4, 3),
        tc.errors.NotAllowedError,
        "did you mean 'torch.nn.Linear'?",
    ),
    ("a short class", lambda w: w.ps.create("Countr"), tc.errors.NotAllowedError, "must be decorated with @hosted"),
    (
        "an own class",
        lambda w: w.ps.create("tests.hosted_models.Countr"),
        tc.errors.NotAllowedError,
        "did you mean 'tests.hosted_models.Counter'?",
    ),
    (
        "an own class without its module",
        lambda w: w.ps.create("Counter"),
        tc.errors.NotAllowedError,
        "did you mean 'tests.hosted_models.Counter'?",
    ),
    ("a function", lambda w: w.ps.call("torch.mtmul"), tc.errors.NotAllowedError, "did you mean 'torch.matmul'?"),
    (
        "the class of an optimizer",
        lambda w: w.ps.optimizer("torch.optim.AdmW", w.net.parameters(), name="other"),
        tc.errors.NotAllowedError,
        "did you mean 'torch.optim.AdamW'?",
    ),
    (
        "an option",
        lambda w: w.ps.optimizer(torch.optim.SGD, w.net.parameters(), name="other", momentun=0.9),
        tc.errors.InvalidArgumentError,
        "'momentun'; did you mean 'momentum'?",
    ),
    (
        "an option of a scheduler",
        lambda w: w.ps.scheduler(lr_scheduler.StepLR, w.opt, step_sise=2),
        tc.errors.InvalidArgumentError,
        "'step_sise'; did you mean 'step_size'?",
    ),
    (
        "a new option",
        lambda w: w.opt.set_options(wieght_decay=0.5),
        tc.errors.InvalidArgumentError,
        "did you mean 'weight_decay'?",
    ),
    ("a name", lambda w: w.ps.attach("nett"), tc.errors.UnknownNameError, "under the name 'nett'; did you mean 'net'?"),
    (
        "an optimizer",
        lambda w: w.ps.attach("net.optimiser"),
        tc.errors.UnknownNameError,
        "did you mean 'net.optimizer'?",
    ),
    ("a table", lambda w: w.ps.table("usres"), tc.errors.UnknownNameError, "did you mean 'users'?"),
    ("an owner", lambda w: w.ps.status("ps"), tc.errors.UnknownNameError, "did you mean 'ps0'?"),
    ("a method", lambda w: w.net.foward(), AttributeError, "did you mean 'forward'?"),
    ("a called method", lambda w: w.net.call("foward"), tc.errors.UnknownMethodError, "did you mean 'forward'?"),
    ("a parameter", lambda w: w.net.parameter("wieght"), tc.errors.UnknownNameError, "did you mean 'weight'?"),
    ("an argument of a policy", lambda w: tc.policies.Sync(trainrs=2), TypeError, "did you mean 'trainers'?"),  # type: ignore[call-arg]
    # Tables
    (
        "an optimizer of torch for rows",
        lambda w: w.ps.table("q", dim=4, optimizer=torch.optim.Adagrad),  # type: ignore[arg-type]
        tc.errors.InvalidArgumentError,
        "optimizer= is one of tc.tables.SGD(…), tc.tables.Adagrad(…), ",
    ),
    (
        "a word for init",
        lambda w: w.ps.table("q", dim=4, init="zeros"),
        tc.errors.InvalidArgumentError,
        "init= is one of tc.tables.N",
    ),  # type: ignore[arg-type]
    (
        "a policy for rows",
        lambda w: w.ps.table("q", dim=4, policy="sync"),
        tc.errors.InvalidArgumentError,
        "a policy is one",
    ),  # type: ignore[arg-type]
    ("a list of tables", lambda w: w.ps.look_up([w.table]), tc.errors.InvalidArgumentError, "{users: ids}"),  # type: ignore[arg-type]
    (
        "an optimizer of a table",
        lambda w: w.ps.optimizer(torch.optim.Adam, w.table),  # type: ignore[arg-type]
        tc.errors.InvalidArgumentError,
        "give a list",
    ),
    (
        "a module's name",
        lambda w: w.ps.table("net", dim=4),
        tc.errors.NameConflictError,
        "'net' is a torch.nn.Linear on",
    ),
    ("rows beyond the limit", lambda w: w.table(torch.arange(9)), tc.errors.TooLargeError, "at most 4 are allowed"),
    ("another width", lambda w: w.ps.table("users", dim=3), tc.errors.NameConflictError, "with dim=2, not 3"),
    # Replicas
    (
        "local steps of a handle",
        lambda w: w.ps.local_steps(w.net, torch.optim.SGD([torch.ones(1)]), tc.LocalSGD(5)),  # type: ignore[arg-type]
        tc.errors.InvalidArgumentError,
        "`await net.replica()` makes one",
    ),
    (
        "a tensor elsewhere",
        lambda w: w.net(torch.ones(2, 4, device="meta")),
        tc.errors.InvalidArgumentError,
        "meta device",
    ),
    ("a wrong shape", lambda w: w.net(torch.ones(2, 5)), tc.errors.RemoteError, "2x5 and 4x3"),
]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("mistake", "error", "text"), [row[1:] for row in MISTAKES], ids=[row[0] for row in MISTAKES])
async def test_a_mistake_is_answered(world: World, mistake: Mistake, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)) as caught:
        made = mistake(world)
        if inspect.isawaitable(made):
            await made
    assert _lines_of_ours(caught.value) <= 15


def _lines_of_ours(error: BaseException) -> int:
    """How many lines of a printed traceback belong to files of this project."""
    found, is_ours = 0, False
    for line in "".join(traceback.format_exception(error)).splitlines():
        frame = re.match(r'\s*File "(.*)", line \d+, in ', line)
        if frame:
            is_ours = any(f"/{package}/" in frame[1] for package in ("trainer_client", "ps_wire", "ps_service"))
        found += is_ours and line.startswith("  ")
    return found


async def own_error(_: tc.Context) -> None:
    await asyncio.sleep(0)
    raise KeyError("own")


async def test_an_error_of_the_own_step_shows_the_own_lines_and_few_of_ours(ps: tc.Client) -> None:
    with pytest.raises(KeyError) as caught:
        await ps.run(own_error)
    assert "in own_error" in "".join(traceback.format_exception(caught.value)) and _lines_of_ours(caught.value) <= 15


@pytest.mark.asyncio(loop_scope="module")
async def test_an_error_that_is_read_twice_has_the_lines_of_each_reading_only(world: World) -> None:
    failed = world.net(torch.ones(2, 5))
    lengths = []
    for _ in range(3):
        with pytest.raises(tc.errors.RemoteError) as caught:
            await failed
        lengths.append(len(list(traceback.walk_tb(caught.value.__traceback__))))
    assert lengths[0] == lengths[1] == lengths[2]


async def test_tracebacks_of_the_blocking_client_are_short(owner: Server) -> None:
    def attempt(mistake: Callable[[], Any]) -> int:
        with pytest.raises((tc.PsError, RuntimeError)) as caught:
            mistake()
        return _lines_of_ours(caught.value)

    def run() -> list[int]:
        with tc.connect(owner.address) as ps:
            net = ps.module("torch.nn.Linear", 4, 3, name="net")
            ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
            table = ps.table("users", dim=2, max_rows=4)
            with ps.context() as ctx:
                loss = net(torch.ones(2, 4)).sum()
                ctx.backward(loss)
                return [
                    attempt(lambda: net(torch.ones(2, 5))),
                    attempt(lambda: table(torch.arange(9))),
                    attempt(lambda: ps.table("users", dim=3)),
                    attempt(lambda: ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.5)),
                    attempt(lambda: ctx.backward(loss)),
                ]

    lines = await asyncio.to_thread(run)
    assert max(lines) <= 15, lines


@pytest.mark.asyncio(loop_scope="module")
async def test_the_traceback_of_a_hosted_module_has_its_own_lines(world: World) -> None:
    with pytest.raises(tc.errors.RemoteError) as caught:
        await world.net(torch.ones(2, 5))
    frames = re.findall(r"File .*, line \d+, in (\w+)", caught.value.remote_traceback)
    assert frames == ["forward"]


async def test_a_client_that_was_not_entered_says_how_to_connect() -> None:
    with pytest.raises(AttributeError, match=r"no 'module', .*`async with tc\.connect.*`ps = await tc\.connect"):
        tc.connect("127.0.0.1:1").module  # noqa: B018


@pytest.mark.parametrize("step", [False, True])
async def test_a_backward_of_calls_that_were_not_recorded_says_where_they_are(ps: tc.Client, step: bool) -> None:
    net = await ps.module("torch.nn.Linear", 4, 3, name="net")
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    before = (await net(torch.ones(2, 4))).sum()
    async with ps.context() as ctx:
        with torch.no_grad():
            without_grad = (await net(torch.ones(2, 4))).sum()
        for loss in (before, without_grad):
            with pytest.raises(RuntimeError, match=r"does not require grad.* inside the block of a context only, and"):
                await ctx.backward(loss, step=opt if step else None)


@pytest.mark.parametrize("blocks", [True, False])
async def test_a_backward_outside_of_a_context_says_where_calls_are_recorded(owner: Server, blocks: bool) -> None:
    with pytest.raises(RuntimeError, match="does not require grad") as raised:
        if blocks:
            await asyncio.to_thread(_backward_without_context, owner.address)
        else:
            async with tc.connect(owner.address) as ps:
                (await (await ps.module("torch.nn.Linear", 2, 1))(torch.ones(1, 2))).sum().backward()
    (note,) = raised.value.__notes__
    assert "inside the block of a context only" in note and "call ctx.backward(loss) instead" in note
    readme = (ROOT / "README.md").read_text("utf-8")
    assert "Calls are recorded only inside `ps.context()`." in readme and '"does not require grad"' in readme


def _backward_without_context(address: str) -> None:
    with tc.connect(address) as ps:
        ps.module("torch.nn.Linear", 2, 1)(torch.ones(1, 2)).sum().backward()


@pytest.mark.asyncio(loop_scope="module")
async def test_refused_local_steps_leave_no_optimizer_behind(world: World) -> None:
    replica, other = await world.net.replica(), torch.optim.SGD(torch.nn.Linear(2, 2).parameters())
    with pytest.raises(tc.errors.InvalidArgumentError, match="steps no parameter of the replica"):
        await world.ps.local_steps(replica, other, tc.LocalSGD(5), name="left-over")
    with pytest.raises(tc.errors.UnknownNameError):
        await world.ps.attach("left-over")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_policy_that_is_none_leaves_no_rows_behind(world: World) -> None:
    with pytest.raises(tc.errors.InvalidArgumentError, match="a policy is one of"):
        await world.ps.table("q", dim=4, policy="sync")  # type: ignore[arg-type]
    with pytest.raises(tc.errors.UnknownNameError):
        await world.ps.attach("q")
