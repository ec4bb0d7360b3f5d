"""Every operation of an owner in this process: each request has an answer that says whose fault it is, and one that was
refused has changed nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any, ClassVar, Final

import torch
from google.protobuf.message import Message

from ps_service.engine import Engine
from ps_service.requests.execution import answer
from ps_service.requests.operations import OPERATIONS
from ps_wire.errors import DeadlineExceededError, InternalError
from ps_wire.limits import MIB, Limits
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.values_pb2 import Handle
from tests import hosted_models
from tests.allowed import allowed
from tests.fuzz import hosted
from tests.fuzz.cases import Case, Finding
from tests.fuzz.mutations import change, made
from tests.fuzz.recording import Recording
from tests.fuzz.targets.target import Reader, only
from tests.ps_service.requests.asking import ANNA, Asker, parameter

_LIMITS: Final = Limits(
    max_result_bytes=4 * MIB, max_object_bytes=4 * MIB, max_context_bytes=32 * MIB, max_message_bytes=4 * MIB
)


def handles_in(message: Message) -> Iterator[Handle]:
    """All handles in a message."""
    for field, content in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in content if field.is_repeated else [content]:
            if isinstance(each, Handle):
                yield each
            else:
                yield from handles_in(each)


def contexts_in(message: Message) -> Iterator[pb.ContextId]:
    """All ids of passes in a message."""
    for field, content in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in content if field.is_repeated else [content]:
            if isinstance(each, pb.ContextId):
                yield each
            else:
                yield from contexts_in(each)


class Owner:
    """An owner with something on it to be damaged; it is made anew whenever a request has changed it."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._fill()

    def request(self, operation: str, message: Message) -> tuple[Any, bool]:
        """The reply, and whether anything has changed."""
        result = self._runner.run(answer(self._engine, ANNA, OPERATIONS[operation], message, None, 0.2, embed=True))
        changed = self._snapshot() != self._before
        # What was given up may still run, and change something later.
        runs_on = result.reply.error.code == DeadlineExceededError.code
        if changed or runs_on or len(self._engine.contexts) > 20:
            self._engine.close()
            self._fill()
        return result.reply, changed

    def close(self) -> None:
        self._engine.close()
        self._runner.close()

    def _fill(self) -> None:
        self._engine = Engine("ps0", allowed(hosted_models, hosted), threads=1, limits=_LIMITS)
        self._runner.run(self._make())
        self._before = self._snapshot()

    async def _make(self) -> None:
        ask = Asker(self._engine)
        net = await ask.linear()
        optimizer = await ask.optimizer(net)
        counter = (
            await ask("create", pb.CreateRequest(class_name="tests.hosted_models.Counter", name="counter"))
        ).object
        await ask.forward(net.handle, torch.ones(1, 2, requires_grad=True))
        stale, foreign = Handle(owner="ps0", object_id="0" * 32), Handle(owner="ps1", object_id=net.handle.object_id)
        here = [net.handle, parameter(net), parameter(net, "wait"), optimizer.handle, counter.handle]
        self.handles = [Handle(), stale, foreign, *here]

    def _snapshot(self) -> Any:
        state = []
        for each in self._engine.registry.objects():
            # That of a table stands for all rows that it might have.
            numbers = [] if each.is_table else [parameter.tolist() for parameter in each.parameters.values()]
            version = getattr(each.value, "version", None)
            groups = [group["lr"] for group in each.value.optimizer.param_groups] if version is not None else None
            state.append((each.name, each.references, numbers, version, groups, getattr(each.value, "value", None)))
        return state


class Requests(Reader):
    """Requests of any operation; some are recorded ones in which something was changed. A case has its name, and the
    message, in which `#3` is the id of the third object of the owner."""

    name: ClassVar[str] = "requests"

    def __init__(self, recording: Recording) -> None:
        self._owner = Owner()
        self._seeds = [each for each in recording.sent if each.operation and not each.payload]

    def close(self) -> None:
        self._owner.close()

    def make(self, chance: random.Random) -> Case:
        if chance.random() < 0.5:
            seed = chance.choice(self._seeds)
            name = seed.operation
            message: Any = getattr(Request(), name)
            message.CopyFrom(getattr(seed.frame.request, name))
            for _ in range(chance.randint(0, 2)):
                change(message, chance)
        else:
            name = chance.choice(sorted(OPERATIONS))
            message = made(getattr(Request(), name).DESCRIPTOR, chance, 4)
        for handle in handles_in(message):
            handle.object_id = f"#{chance.randrange(len(self._owner.handles))}"
        for context in contexts_in(message):
            context.CopyFrom(pb.ContextId(trainer=ANNA, number=chance.choice([0, 1, 1, 1, 2])))
        return Case(self.name, [name.encode(), message.SerializeToString()])

    def read(self, case: Case) -> None:
        name = case.parts[0].decode()
        message: Any = type(getattr(Request(), name)).FromString(case.parts[1])
        for handle in handles_in(message):
            handle.CopyFrom(self._owner.handles[int(handle.object_id[1:])])
        with only():
            reply, changed = self._owner.request(name, message)
            if reply.WhichOneof("outcome") not in ("error", name):
                raise Finding(f"{name} was answered with {reply.WhichOneof('outcome')}")
            if reply.HasField("error"):
                if reply.error.code == InternalError.code or not reply.error.message:
                    raise Finding(f"{name}: {reply.error.message}\n{reply.error.traceback}")
                if changed:
                    raise Finding(f"{name} was refused and has changed something: {reply.error.message}")
