"""Tests of the request of a backward: several calls, steps, and the end of the pass."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ps_service.engine import Engine
from ps_service.parameters.locks import WouldBlock
from ps_service.passes.pass_context import PassContext
from ps_service.requests.context import RequestContext
from ps_service.requests.operations import OPERATIONS
from ps_service.requests.run_handler import run_inline
from ps_service.sessions.request_sources import Running
from ps_service.sessions.sessions import SessionState
from ps_service.training.optimizers import HostedOptimizer, optimizer_of
from ps_wire import policies
from ps_wire.errors import ContextEndedError, InvalidArgumentError, StaleHandleError
from ps_wire.refs import ContextId, Ref
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.errors_pb2 import ERROR_NON_FINITE_GRADIENT, ERROR_STALE_HANDLE
from ps_wire.v1.values_pb2 import Handle
from tests.latencies import expect
from tests.ps_service.requests.asking import ANNA, ONE, Asker, python, value
from tests.ps_service.threads import in_a_hurry


@pytest.fixture
async def ask(engine: Engine) -> Asker:
    return Asker(engine)


def request(*gradients: Any, **fields: Any) -> pb.BackwardRequest:
    """The backward of calls 1, 2 … with one gradient each, all of one output."""
    first, *others = [
        {"call": number, "outputs": [0], "gradients": value([each])} for number, each in enumerate(gradients, start=1)
    ]
    return pb.BackwardRequest(context=ONE, **first, more=[pb.RecordedCall(**each) for each in others], **fields)


async def recorded(ask: Asker, *inputs: float, name: str = "net") -> pb.ObjectInfo:
    """A module with the weight [[1, 2]], called once for each input, whose two elements are equal."""
    made = await ask.linear(name)
    for number, each in enumerate(inputs, start=1):
        await ask.forward(made.handle, torch.full((1, 2), each, requires_grad=True), call=number)
    return made


async def gradients(ask: Asker) -> list[Any]:
    reply = await ask("gradients", pb.GradientsRequest(context=ONE))
    return [each.tolist() for each in python(reply.gradients)]


async def test_the_backwards_of_several_calls_run_in_one_request(ask: Asker) -> None:
    await recorded(ask, 1.0, 10.0)
    reply = await ask("backward", request(torch.ones(1, 1), 2 * torch.ones(1, 1)))
    assert [each.tolist() for each in python(reply.gradients)] == [[[1.0, 2.0]]]
    assert [[each.tolist() for each in python(more)] for more in reply.more] == [[[[2.0, 4.0]]]]
    assert await gradients(ask) == [[[21.0, 21.0]]]
    assert len(reply.seconds) == 2 and all(0 <= seconds < 10 for seconds in reply.seconds)


async def test_the_first_error_ends_the_request(ask: Asker) -> None:
    made = await recorded(ask, 1.0, 10.0, 100.0)
    opt = await ask.optimizer(made)
    with pytest.raises(InvalidArgumentError, match="gradient is"):
        await ask("backward", request(torch.ones(1, 1), torch.ones(3), torch.ones(1, 1), steps=[opt.handle]))
    # As with requests of their own, what was computed before is in the pass.
    assert await gradients(ask) == [[[1.0, 1.0]]]
    assert await ask.weight(made) == [[1.0, 2.0]]


async def test_gradients_are_looked_at_before_the_first_backward_runs(ask: Asker) -> None:
    await recorded(ask, 1.0, 10.0)
    wrong = request(torch.ones(1, 1), torch.ones(1, 1))
    wrong.more[0].gradients.CopyFrom(value("no list"))
    with pytest.raises(InvalidArgumentError, match="are a list"):
        await ask("backward", wrong)
    assert await gradients(ask) == []


async def test_steps_follow_the_backward(ask: Asker) -> None:
    made = await recorded(ask, 1.0, 10.0)
    opt = await ask.optimizer(made)
    reply = await ask("backward", request(torch.ones(1, 1), torch.ones(1, 1), steps=[opt.handle]))
    assert list(reply.versions) == [1] and not reply.HasField("step_error")
    assert await ask.weight(made) == [[1.0 - 0.5 * 11, 2.0 - 0.5 * 11]]
    assert await gradients(ask) == [[[11.0, 11.0]]]


async def test_the_end_of_the_pass_follows_the_steps(ask: Asker) -> None:
    made = await recorded(ask, 1.0)
    opt = await ask.optimizer(made)
    end = pb.EndContextRequest(all_before=1)
    reply = await ask("backward", request(torch.ones(1, 1), steps=[opt.handle], end=end))
    assert list(reply.versions) == [1]
    assert len(ask.engine.contexts.all()) == 0
    with pytest.raises(ContextEndedError):
        await ask("backward", request(torch.ones(1, 1)))


async def test_a_pass_can_end_without_a_step(ask: Asker) -> None:
    await recorded(ask, 1.0)
    await ask("backward", request(torch.ones(1, 1), end=pb.EndContextRequest()))
    assert len(ask.engine.contexts.all()) == 0


async def test_an_error_of_a_step_is_part_of_the_reply(ask: Asker) -> None:
    made, other = await recorded(ask, 1.0), await ask.linear("other")
    refusing = await ask.optimizer(made, non_finite=pb.NON_FINITE_REFUSE)
    before, after = await ask.optimizer(other), await ask.optimizer(other, cls="torch.optim.Adam", name="late")
    steps = [each.handle for each in (before, refusing, after)]
    reply = await ask(
        "backward", request(torch.full((1, 1), torch.nan), steps=steps, end=pb.EndContextRequest(all_before=1))
    )
    assert reply.step_error.code == ERROR_NON_FINITE_GRADIENT
    assert list(reply.versions) == [0]
    assert python(reply.gradients)[0].isnan().all()
    # The pass goes on, with its gradients.
    assert len(await gradients(ask)) == 1
    assert await ask.weight(made) == [[1.0, 2.0]]


async def test_an_optimizer_that_is_gone_is_an_error_of_its_step(ask: Asker) -> None:
    await recorded(ask, 1.0)
    gone = Handle(owner="ps0", object_id="gone")
    reply = await ask("backward", request(torch.ones(1, 1), steps=[gone]))
    assert reply.step_error.code == ERROR_STALE_HANDLE, reply.step_error
    with pytest.raises(StaleHandleError):
        await ask("step", pb.StepRequest(optimizer=gone, context=ONE))


async def test_each_part_of_a_request_is_counted(ask: Asker) -> None:
    made = await recorded(ask, 1.0, 10.0)
    opt = await ask.optimizer(made)
    await ask("backward", request(torch.ones(1, 1), torch.ones(1, 1), steps=[opt.handle], end=pb.EndContextRequest()))
    counted = ask.engine.counters.operations()
    assert [counted[name].durations.count for name in ("backward", "step", "end_context")] == [1, 1, 1]


async def test_a_step_that_fails_is_counted_as_an_error_of_the_step(ask: Asker) -> None:
    made = await recorded(ask, 1.0)
    opt = await ask.optimizer(made, non_finite=pb.NON_FINITE_REFUSE)
    end = pb.EndContextRequest()
    await ask("backward", request(torch.full((1, 1), torch.inf), steps=[opt.handle], end=end))
    counted = ask.engine.counters.operations()
    assert "end_context" not in counted
    assert [(counted[name].durations.count, counted[name].errors) for name in ("backward", "step")] == [(1, 0), (1, 1)]


# Checks of gradients that a later request is to apply


async def test_optimizers_that_accept_the_gradients_are_not_stepped(ask: Asker) -> None:
    made = await recorded(ask, 1.0)
    opt = await ask.optimizer(made, non_finite=pb.NON_FINITE_REFUSE)
    reply = await ask("backward", request(torch.ones(1, 1), checks=[opt.handle]))
    assert reply.checked and not reply.HasField("step_error") and not reply.versions
    assert await ask.weight(made) == [[1.0, 2.0]]
    assert await gradients(ask) == [[[1.0, 1.0]]]


async def test_an_optimizer_that_refuses_the_gradients_is_named_in_the_reply(ask: Asker) -> None:
    made, other = await recorded(ask, 1.0), await ask.linear("other")
    refusing = await ask.optimizer(made, non_finite=pb.NON_FINITE_REFUSE)
    accepting = await ask.optimizer(other, name="late")
    message = request(torch.full((1, 1), torch.nan), checks=[accepting.handle, refusing.handle])
    reply = await ask("backward", message)
    assert not reply.checked and reply.step_error.code == ERROR_NON_FINITE_GRADIENT
    assert len(await gradients(ask)) == 1


async def test_a_pass_that_has_called_other_owners_is_not_checked_ahead(
    ask: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await recorded(ask, 1.0)
    opt = await ask.optimizer(made)
    monkeypatch.setattr(PassContext, "called", object())
    reply = await ask("backward", request(torch.ones(1, 1), checks=[opt.handle]))
    assert not reply.checked and not reply.HasField("step_error")


# On the event loop


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls count as short however busy the machine is."""
    monkeypatch.setattr("ps_wire.runtime.latency.INLINE_SECONDS", 10.0)


def inline(ask: Asker, message: pb.BackwardRequest) -> tuple[RequestContext, Any]:
    """What a request on the event loop comes to, and its context."""
    ctx = RequestContext(ask.engine, ANNA, embeds=True)
    return ctx, run_inline(ctx, OPERATIONS["backward"], message, number=0)


async def all_short(ask: Asker, *optimizers: pb.ObjectInfo) -> list[HostedOptimizer]:
    """Everything counts as short, whatever its size."""
    for hosted in ask.engine.registry.objects():
        if hosted.is_module:
            expect(hosted.method("forward").backward_latency, 0.0)
    found = [ask.engine.registry.find(Ref.from_message(each.handle)).value for each in optimizers]
    for each in found:
        expect(each.latency, 0.0)
    return found


@pytest.mark.usefixtures("patient")
async def test_a_short_request_runs_on_the_event_loop_with_all_its_parts(ask: Asker) -> None:
    made = await recorded(ask, 1.0, 10.0)
    opt = await ask.optimizer(made)
    await all_short(ask, opt)
    _, answer = inline(ask, request(torch.ones(1, 1), torch.ones(1, 1), steps=[opt.handle], end=pb.EndContextRequest()))
    assert answer is not None
    assert list(answer.reply.backward.versions) == [1], answer.reply


@pytest.mark.parametrize("most", [0, 1 << 20])
@pytest.mark.usefixtures("patient")
async def test_large_gradients_are_checked_in_a_thread(ask: Asker, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr("ps_service.requests.backward._MOST_INLINE", most)
    made = await recorded(ask, 1.0)
    opt = await ask.optimizer(made)
    await all_short(ask, opt)
    ctx, answer = inline(ask, request(torch.ones(1, 1), checks=[opt.handle]))
    assert (answer is None) == (most == 0)
    if answer is None:
        assert ctx.progress is not None and len(ctx.progress.of_inputs) == 1  # it need not run again
    else:
        assert answer.reply.backward.checked


@pytest.mark.parametrize("long", ["backward", "step"])
@pytest.mark.usefixtures("patient")
async def test_one_long_part_needs_a_thread(ask: Asker, long: str) -> None:
    made = await recorded(ask, 1.0)
    opt = await ask.optimizer(made)
    (optimizer,) = await all_short(ask, opt)
    hosted = ask.engine.registry.find(Ref.from_message(made.handle))
    expect(hosted.method("forward").backward_latency if long == "backward" else optimizer.latency, 100.0)
    ctx, answer = inline(ask, request(torch.ones(1, 1), steps=[opt.handle]))
    assert answer is None and ctx.progress is None


@pytest.mark.usefixtures("patient")
async def test_a_step_that_would_wait_goes_on_in_a_thread_and_the_backward_runs_once(ask: Asker) -> None:
    made = await recorded(ask, 1.0, 10.0)
    opt = await ask.optimizer(made)
    (optimizer,) = await all_short(ask, opt)
    message = request(torch.ones(1, 1), torch.ones(1, 1), steps=[opt.handle], end=pb.EndContextRequest())
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with optimizer.lock:
            taken.set()
            done.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait(10)
    ctx, answer = inline(ask, message)
    done.set()
    holder.join()
    assert answer is None and ctx.progress is not None and len(ctx.progress.of_inputs) == 2
    ctx.restart()
    answer = run_inline(ctx, OPERATIONS["backward"], message, number=0)
    assert answer is not None
    reply = answer.reply.backward
    assert [each.tolist() for each in python(reply.gradients)] == [[[1.0, 2.0]]]
    assert (len(reply.more), len(reply.seconds), list(reply.versions)) == (1, 2, [1])
    assert await ask.weight(made) == [[1.0 - 0.5 * 11, 2.0 - 0.5 * 11]]


@pytest.mark.usefixtures("patient")
async def test_a_step_with_larger_gradients_than_were_short_needs_a_thread(ask: Asker) -> None:
    made = await recorded(ask, 1.0)
    opt = await ask.optimizer(made)
    (optimizer,) = await all_short(ask, opt)
    expect(optimizer.latency, 0.0, most=0)
    ctx, answer = inline(ask, request(torch.ones(1, 1), steps=[opt.handle]))
    assert answer is None and ctx.progress is not None and len(ctx.progress.of_inputs) == 1
    assert optimizer.version == 0


@pytest.mark.usefixtures("patient")
async def test_no_step_is_made_for_a_trainer_that_has_given_up(ask: Asker) -> None:
    made = await recorded(ask, 1.0)
    opt = await ask.optimizer(made)
    (optimizer,) = await all_short(ask, opt)
    ctx = RequestContext(ask.engine, ANNA, embeds=True)
    ctx.give_back()
    operation = OPERATIONS["backward"]
    answer = run_inline(ctx, operation, request(torch.ones(1, 1), steps=[opt.handle]), number=0)
    assert answer is not None and optimizer.version == 0
    context = ask.engine.contexts.get(ContextId.from_message(ONE))
    assert context is not None and len(context.gradients()) == 1


@pytest.mark.parametrize("fields", ["checks", "together", "rounds"])
async def test_what_would_have_to_wait_on_the_event_loop_is_no_error_of_a_step(
    ask: Asker, monkeypatch: pytest.MonkeyPatch, fields: str
) -> None:
    """It runs again in a thread."""

    def must_wait(self: HostedOptimizer, *args: Any) -> None:
        raise WouldBlock

    made = await recorded(ask, 1.0)
    plain = (await ask.optimizer(made, name="plain")).handle
    policy = value(policies.to_plain(policies.Sync(trainers=1)))
    in_rounds = (await ask.optimizer(made, name="in rounds", policy=policy)).handle
    engine = ask.engine
    asked = {
        "checks": request(torch.ones(1, 1), checks=[plain]),
        "together": request(torch.ones(1, 1), steps=[plain], together=True),
        "rounds": request(torch.ones(1, 1), steps=[plain, in_rounds]),
    }
    monkeypatch.setattr(HostedOptimizer, "check", must_wait)
    monkeypatch.setattr("ps_service.training.joint_steps.step_together", must_wait)
    ctx, reply = RequestContext(engine, ANNA), pb.BackwardReply()
    with in_a_hurry(engine.parameter_locks), pytest.raises(WouldBlock):
        OPERATIONS["backward"].handle(ctx, asked[fields], reply)
    assert not reply.HasField("step_error")
    assert [optimizer_of(engine.registry.find(Ref.from_message(each))).version for each in (plain, in_rounds)] == [0, 0]
    # The backward itself is not run again there.
    monkeypatch.undo()
    OPERATIONS["backward"].handle(ctx, asked[fields], again := pb.BackwardReply())
    assert not again.HasField("step_error") and len(again.seconds) == 1


async def test_an_eviction_on_the_event_loop_may_wait(ask: Asker) -> None:
    """The end of a session may complete rounds, and what they step must not be stopped halfway."""
    engine, waits = ask.engine, []
    session = engine.sessions.open(ANNA)

    class Ends:
        def running(self) -> Iterator[Running]:
            return iter(())

        def dismiss(self, session: SessionState) -> None:
            waits.append(not engine.parameter_locks.this_thread.nonblocking)

    engine.requests.add(Ends())
    ctx, evict = RequestContext(engine, b"b" * 16), pb.EvictRequest(session=session.name)
    assert run_inline(ctx, OPERATIONS["evict"], evict, 1) is not None
    assert waits == [True]
