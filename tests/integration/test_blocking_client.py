"""Tests the blocking client in plain threads, with an owner in a process of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trainer_client as tc
from tests.conftest import SERVE
from tests.forking.process import Forking
from tests.integration.support import AFFINE, COUNTER, GATE
from trainer_client.client.blocking import Blocking
from trainer_client.client.portal import Portal


@pytest.fixture(scope="module")
def address(forking: Forking) -> Iterator[str]:
    """One owner for all tests of this module; each makes objects under names of its own."""
    with forking.start(*SERVE, "--threads", "8") as process:
        line = process.stdout.readline()
        assert " is serving on " in line, line
        yield line.split()[-1]
        process.terminate()
        assert process.wait() == 0


@pytest.fixture
def ps(address: str) -> Iterator[Any]:
    with tc.connect(address) as client:
        yield client


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """What that many threads return, all of them started before any goes on."""
    barrier = threading.Barrier(count)

    def begin(number: int) -> Any:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


def test_training_is_as_with_await_and_as_with_local_torch(ps: Any) -> None:
    net = ps.module(torch.nn.Linear, 4, 3, seed=0)
    opt = ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, momentum=0.9)
    scheduler = ps.scheduler(torch.optim.lr_scheduler.StepLR, opt, 2)
    torch.manual_seed(0)
    local = torch.nn.Linear(4, 3)
    local_opt = torch.optim.SGD(local.parameters(), lr=0.1, momentum=0.9)
    local_scheduler = torch.optim.lr_scheduler.StepLR(local_opt, 2)
    for step in range(4):
        x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
        with ps.context() as ctx:
            loss = F.cross_entropy(net(x), y)
            ctx.backward(loss)
            gradients = {handle.name: gradient for handle, gradient in ctx.get_gradients().items()}
            assert float(ctx.clip_grad_norm(net.parameters(), 1.0)) > 0
            assert opt.step(ctx) == {"ps0": step + 1}
        local_opt.zero_grad()
        F.cross_entropy(local(x), y).backward()
        assert all(torch.equal(gradients[name], each.grad) for name, each in local.named_parameters())
        torch.nn.utils.clip_grad_norm_(local.parameters(), 1.0)
        local_opt.step()
        local_scheduler.step()
        assert scheduler.step() == pytest.approx(local_scheduler.get_last_lr())
    for name, value in local.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], value)
    with torch.no_grad():
        torch.testing.assert_close(net.eval()(x), local.eval()(x))


def test_everything_has_its_result_at_once(ps: Any) -> None:
    net = ps.module(AFFINE, 2, 2, name="net")
    assert isinstance(net, Blocking) and net.name == "net" and ps.owners == ["ps0"]
    assert dict(net.named_parameters())["weight"].to_here().shape == (2, 2)
    assert net.load_state_dict({**net.state_dict(), "bias": torch.ones(2)}) == ([], [])
    assert torch.equal(net.parameter("bias").to_here(), torch.ones(2))
    assert net.both(torch.ones(1, 2), scale=2.0)["shape"] == (1, 2)
    assert ps.attach("net") == net and hash(ps.attach(str(net))) == hash(net)
    assert "both" in dir(net) and "state_dict" in dir(net) and repr(net).startswith("<RemoteModule ps://ps0/")
    with pytest.raises(TypeError, match="'RemoteModule' object is not subscriptable"):
        net[0]
    counter = ps.create(COUNTER, 2)
    assert counter.add(3) == 5 and ps.create(COUNTER).look_at(counter) == 5
    there = counter.hand_out([counter.get(), "x"])
    assert there.to_here() == [5, "x"]
    assert counter.pass_on(there) == there
    assert {each.name for each in ps.status().objects} >= {"net"}
    ps.delete("net")
    with pytest.raises(tc.errors.StaleHandleError):
        net(torch.ones(1, 2))


def test_errors_are_raised_where_the_call_is(ps: Any) -> None:
    counter = ps.create(COUNTER)
    with pytest.raises(tc.errors.RemoteError, match="on purpose") as caught:
        counter.fail("on purpose")
    assert "hosted_models.py" in caught.value.remote_traceback
    with pytest.raises(tc.errors.NotAllowedError):
        ps.create("os.system", "true")
    with pytest.raises(tc.errors.UnknownNameError):
        ps.attach("nothing")
    with pytest.raises(tc.errors.DeadlineExceededError):
        gate = ps.create(GATE)
        gate.options(timeout=0.01).wait()
    gate.open()
    with pytest.raises(AttributeError, match="offers no 'subtract'"):
        counter.subtract(1)


def test_threads_share_a_client_and_have_contexts_of_their_own(ps: Any) -> None:
    net = ps.module(torch.nn.Linear, 3, 1, seed=0)
    state = net.state_dict()

    def passes(number: int) -> list[torch.Tensor]:
        found = []
        for turn in range(5):
            x = torch.full((1, 3), float(number * 10 + turn))
            assert tc.current_context() is None
            with ps.context() as ctx:
                assert tc.current_context() is ctx.unwrapped
                ctx.backward(net(x).sum())
                found.append({handle.name: grad for handle, grad in ctx.get_gradients().items()}["weight"])
            assert tc.current_context() is None
        return found

    for number, found in enumerate(in_threads(4, passes)):
        assert [gradient.tolist() for gradient in found] == [[[number * 10.0 + turn] * 3] for turn in range(5)]
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())


def test_threads_with_clients_of_their_own_share_named_objects(address: str) -> None:
    def work(number: int) -> tuple[str, list[int]]:
        with tc.connect(address) as ps:
            counter = ps.create(COUNTER, 0, name="between threads")
            return str(counter), [counter.add() for _ in range(10)]

    results = in_threads(4, work)
    assert len({text for text, _ in results}) == 1
    assert sorted(number for _, numbers in results for number in numbers) == list(range(1, 41))


def test_a_context_belongs_to_the_thread_that_opened_it(ps: Any) -> None:
    net = ps.module(torch.nn.Linear, 2, 1)
    with ps.context() as ctx:
        with ThreadPoolExecutor(1) as pool:
            elsewhere = pool.submit(net, torch.ones(1, 2)).result()
        assert not elsewhere.requires_grad and net(torch.ones(1, 2)).requires_grad
        with pytest.raises(RuntimeError, match="contexts do not nest"), ps.context():
            pass
        # Its methods may be used from anywhere.
        loss = net(torch.ones(1, 2)).sum()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(ctx.backward, loss).result()
        assert len(ctx.get_gradients()) == 2


def test_unwrapped_has_many_calls_in_flight(ps: Any) -> None:
    counter = ps.create(COUNTER).unwrapped
    pending = [counter.add() for _ in range(256)]
    assert sorted(each.wait() for each in pending) == list(range(1, 257))
    gate = ps.create(GATE).unwrapped
    waiting = [gate.wait() for _ in range(3)]
    assert gate.wait_for(3).wait() == 3 and not any(each.done() for each in waiting)
    waiting[0].cancel()
    gate.open().wait()
    assert [each.wait() for each in waiting[1:]] == ["through"] * 2
    with pytest.raises(tc.errors.CancelledCallError):
        waiting[0].wait()


def test_clients_share_one_portal_also_one_after_the_other(address: str) -> None:
    Portal.end()
    assert portals() == []
    with tc.connect(address) as first:
        (thread,) = portals()
        with tc.connect(address) as second:
            assert portals() == [thread]
            assert first.create(COUNTER).add() == second.create(COUNTER).add() == 1
        assert portals() == [thread] and first.create(COUNTER, 4).get() == 4
        # A backward runs in another thread.
        net = first.module(torch.nn.Linear, 1, 1)
        with first.context() as ctx:
            ctx.backward(net(torch.ones(1, 1)).sum())
    before = set(threading.enumerate())
    for number in range(10):
        with tc.connect(address) as ps:
            assert portals() == [thread] and ps.create(COUNTER, number).get() == number
    assert portals() == [thread] and set(threading.enumerate()) <= before


def portals() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "trainer-client"]


def test_an_error_inside_the_block_gives_the_portal_back(address: str) -> None:
    with pytest.raises(KeyError), tc.connect(address) as ps:
        ps.create(COUNTER)
        raise KeyError
    with pytest.raises(tc.errors.UnavailableError), tc.connect("127.0.0.1:1", connect_timeout=0.05):
        pass
    with tc.connect(address) as ps:
        assert ps.create(COUNTER).add() == 1
    Portal.end()
    assert portals() == []


def test_ctrl_c_once_the_client_is_open_closes_it(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tc.Client] = []

    def interrupted(client: tc.Client, _: object) -> None:
        opened.append(client)
        raise KeyboardInterrupt

    monkeypatch.setattr("trainer_client.client.connect.BlockingClient", interrupted)
    with pytest.raises(KeyboardInterrupt), tc.connect(address):
        raise AssertionError("it is not entered")
    (client,) = opened
    assert client.closed and client.sessions["ps0"].state == "closed"


def test_after_the_block_a_call_says_that_the_client_is_closed(address: str) -> None:
    with tc.connect(address) as ps:
        counter = ps.create(COUNTER)
        gate = ps.create(GATE, name="left behind")
        pending = gate.unwrapped.wait()
        gate.wait_for(1)
    with pytest.raises(tc.errors.ClosedError):
        pending.wait()
    with tc.connect(address) as other:
        other.attach("left behind").open()
    for call in (counter.add, lambda: ps.create(COUNTER), ps.status, lambda: ps.context().backward(torch.ones(1))):
        with pytest.raises(tc.errors.ClosedError, match="this client is closed"):
            call()


def test_calls_from_inside_the_portals_own_loop_are_refused(ps: Any, address: str) -> None:
    counter = ps.create(COUNTER)
    (portal,) = [Portal._shared]
    assert portal is not None

    async def inside() -> None:
        with pytest.raises(RuntimeError, match="would block the event loop that has to bring the answer"):
            counter.add()
        with pytest.raises(RuntimeError, match="inside the client's own event loop would wait"), tc.connect(address):
            pass

    asyncio.run_coroutine_threadsafe(inside(), portal.loop).result()
    # The refused wait did not end the call, which the next ones may overtake.
    assert any(counter.get() == 1 for _ in range(1000))


def test_local_steps_wait_for_their_push(ps: Any) -> None:
    net = ps.module(AFFINE, 3, 2, name="stepped locally", seed=0)
    replica = net.replica()
    local = ps.local_steps(replica, torch.optim.SGD(replica.parameters(), lr=0.1), tc.LocalSGD(2))
    found = []
    for _ in range(4):
        replica(torch.ones(1, 3)).sum().backward()
        found.append(local.step())
    assert found[0] is found[2] is None and [each["ps0"] for each in found[1::2]] == [1, 2]
    assert all(torch.equal(value, replica.module.state_dict()[name]) for name, value in net.state_dict().items())
    other = replica.local_steps(torch.optim.SGD(replica.parameters(), lr=0.1), local.optimizer, every=1)
    assert other.push()["ps0"] == 3
