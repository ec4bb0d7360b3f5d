"""An owner and its trainers, under an audit hook: a normal job, and a hostile one full of names that must stay names.

Run as a program; prints as JSON what the interpreter was asked to import, compile, execute and unpickle meanwhile.
"""

from __future__ import annotations

import asyncio
import builtins
import importlib
import json
import pickle
import sys
from collections import Counter
from collections.abc import Awaitable, Iterator
from fractions import Fraction
from typing import Any

import torch

import trainer_client as tc
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.values_pb2 import Handle, Value
from tests.integration.support import COUNTER, serving

MODULES = ("antigravity", "this", "wsgiref", "turtle", "idlelib", "tkinter", "lib2to3", "torch.utils.bottleneck")
"""Real modules that nothing here imports."""

NAMES = [
    *(f"{module}.x" for module in MODULES),
    *("wsgiref.simple_server.WSGIServer", "turtle.Turtle", "antigravity", "this", "idlelib.run.main"),
    *("os.system", "builtins.eval", "subprocess.Popen", "pickle.loads", "torch.load", "importlib.import_module"),
    *("__import__('this')", "torch.nn.Linear.__init__", "__reduce__", "__class__", "tests.hosted_models.threading"),
]


class Evil:
    """Its pickle imports `this`."""

    def __reduce__(self) -> Any:
        return __import__, ("this",)


class Hook:
    """Collects what the interpreter is asked to do. Hooks cannot be removed."""

    WATCHED = ("import", "exec", "compile", "pickle.find_class", "marshal.loads", "os.system", "subprocess.Popen")

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in self.WATCHED and not (event == "compile" and _is_for_a_traceback()):
            self.events.append((event, repr(arguments)[:200]))

    def taken(self) -> list[tuple[str, str]]:
        events, self.events = self.events, []
        return events


def _is_for_a_traceback() -> bool:
    """Whether `traceback` parses a line of a source file, to find what to underline in it; nothing is executed."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_extract_caret_anchors_from_line_segment":
            return frame.f_globals["__name__"] == "traceback"
        frame = frame.f_back
    return False


async def normal_job(ps: tc.Client, number: int) -> None:
    net = await ps.module("torch.nn.Linear", 4, 2, name=f"net{number}", seed=0)
    opt = await ps.optimizer("torch.optim.Adam", net.parameters(), lr=0.1)
    scheduler = await ps.scheduler("torch.optim.lr_scheduler.StepLR", opt, 1)
    async with ps.context() as ctx:
        await ctx.backward((await net(torch.ones(3, 4))).square().sum())
        await opt.step(ctx)
    await scheduler.step()
    await opt.load_state_dict(await opt.state_dict())
    await scheduler.load_state_dict(await scheduler.state_dict())
    await net.load_state_dict(await net.state_dict())
    await (await ps.create(COUNTER)).echo({"a": [torch.ones(2), slice(1), torch.float32]})


def hostile_requests(ps: tc.Client, net: tc.RemoteModule, opt: tc.DistributedOptimizer, name: str) -> Iterator[Any]:
    """Requests with a name in every place where there is one."""
    parameters = net.parameters()
    yield ps.create(name, name, name=name)
    yield ps.module(name)
    yield ps.module("torch.nn.Linear", name, 2)
    yield ps.module("torch.nn.Linear", 2, 2, **{name: name})
    yield ps.attach(name)
    yield ps.delete(name)
    yield ps.optimizer(name, parameters, lr=0.1)
    yield ps.optimizer("torch.optim.SGD", parameters, name="hostile", **{name: name})
    yield ps.optimizer("torch.optim.SGD", parameters, name="hostile", lr=name)
    yield ps.scheduler(name, opt)
    yield ps.scheduler("torch.optim.lr_scheduler.LambdaLR", opt, name, name="hostile")
    yield ps.scheduler("torch.optim.lr_scheduler.StepLR", opt, **{name: 1}, name="hostile")
    yield net.call(name)
    yield net.call("forward", **{name: pickle.dumps(Evil())})
    yield net.load_state_dict({name: pickle.dumps(Evil()), "weight": name})
    yield opt.remotes["ps0"].load_state_dict({"state": {name: {name: name}}, "param_groups": [name]})
    yield opt.set_options(**{name: name})
    for handle in (
        Handle(owner="ps0", object_id=name),
        Handle(owner=name),
        net.ref._replace(parameter=name).to_message(),
    ):
        yield net.session.submit(Request(fetch=pb.FetchRequest(target=handle)), None, _nothing)
    for value in (Value(device=name), Value(dtype=10_000), Value(binary=pickle.dumps(Evil()))):
        call = pb.CallRequest(target=net.ref.to_message(), args=Value(tuple={"items": [value]}))
        yield net.session.submit(Request(call=call), None, _nothing)


def _nothing(reply: Any, payload: Any) -> None:
    return None


async def hostile_job(ps: tc.Client) -> dict[str, int]:
    """Sends every hostile request; what they were answered with, by type."""
    net = await ps.attach("net0")
    assert isinstance(net, tc.RemoteModule)
    opt = await ps.optimizer("torch.optim.Adam", net.parameters(), lr=0.1)
    answers: Counter[str] = Counter()
    for name in NAMES:
        for request in hostile_requests(ps, net, opt, name):
            answers[await _answer(request)] += 1
    counter = await ps.create(COUNTER)
    poison = [pickle.dumps(Evil()), pickle.dumps(Evil()).decode("latin-1"), *NAMES]
    # Data is data: it comes back as it was.
    assert await counter.echo(poison) == poison
    as_tensor = torch.frombuffer(bytearray(poison[0]), dtype=torch.uint8)
    assert torch.equal(await counter.echo(as_tensor), as_tensor)
    return answers


async def _answer(request: Awaitable[Any]) -> str:
    try:
        await request
    except tc.PsError as error:
        return type(error).__name__
    return "accepted"


async def main() -> dict[str, Any]:
    hook = Hook()
    async with serving() as owner, tc.connect(owner.address) as ps:
        await normal_job(ps, 0)
        await hostile_job(ps)
        # Torch and Python import what they need when they first need it.
        first_round = hook.taken()
        answers = await hostile_job(ps)
        await normal_job(ps, 1)
        second_round = hook.taken()
        imported = [name for name in MODULES if name in sys.modules]
    controls = []
    for control in (
        lambda: pickle.loads(pickle.dumps(Fraction(1, 2))),
        lambda: builtins.exec("1"),
        lambda: builtins.compile("1", "", "eval"),
        lambda: __import__("pyclbr"),
        lambda: importlib.import_module("nturl2path"),
    ):
        control()
        controls.append(sorted({event for event, _ in hook.taken()}))
    return {
        "answers": answers,
        "first round": [event for event in first_round if any(name in event[1] for name in (*MODULES, "find_class"))],
        "find_class": [event for event in (*first_round, *second_round) if event[0] == "pickle.find_class"],
        "second round": second_round,
        "imported": imported,
        "controls": controls,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main())))
