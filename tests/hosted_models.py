"""Classes that the owners in these tests host."""

from __future__ import annotations

import ctypes
import enum
import gc
import itertools
import threading
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ps_service import RRef, hosted, remote
from tests.table_models import Scored, rows_of  # noqa: F401
from trainer_client import rpc


@hosted
class Affine(nn.Module):
    """x @ weight + bias, without a bias in torch's way, and a few methods beside it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x @ self.weight + self.bias

    @remote
    def called(self) -> int:
        return self.calls

    @remote
    def both(self, x: torch.Tensor, *, scale: float = 1.0) -> dict[str, Any]:
        """Two outputs that need gradients, one that does not, in nested containers."""
        y = self(x)
        return {"y": [y, (y * scale).relu()], "shape": tuple(y.shape), "argmax": y.argmax(-1)}

    def private(self) -> None:
        """Not marked: trainers must not get here."""


@hosted
class Counter:
    """A plain object with state."""

    def __init__(self, start: int = 0) -> None:
        self._lock = threading.Lock()
        self.value = start

    @remote
    def add(self, amount: int = 1) -> int:
        with self._lock:
            self.value += amount
            return self.value

    @remote(inline=True)
    def get(self) -> int:
        return self.value

    @remote(inline=True)
    def echo(self, *args: Any, **kwargs: Any) -> Any:
        return (args, kwargs) if kwargs else (args[0] if len(args) == 1 else args)

    @remote
    def fail(self, message: str) -> None:
        raise ValueError(message)

    @remote
    def hand_out(self, value: Any) -> RRef:
        """Leaves a value on the owner and answers with a handle to it."""
        return RRef(value)

    @remote
    def pass_on(self, rref: RRef) -> RRef:
        return rref

    @remote
    def look_at(self, rref: RRef) -> Any:
        value = rref.local_value()
        return value.value if isinstance(value, Counter) else value


@hosted
class Gate:
    """Blocks its callers until it is opened; tests use it where others would sleep."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._lock = threading.Lock()
        self._waiting = threading.Condition(self._lock)
        self.inside = 0

    @remote
    def wait(self) -> str:
        with self._waiting:
            self.inside += 1
            self._waiting.notify_all()
        self._open.wait()
        return "through"

    @remote
    def wait_for(self, callers: int) -> int:
        """Returns once that many callers are waiting."""
        with self._waiting:
            self._waiting.wait_for(lambda: self.inside >= callers)
            return self.inside

    @remote
    def open(self) -> None:
        self._open.set()


@hosted
class Chained(nn.Module):
    """Uses another hosted module that it gets as a handle."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor, inner: RRef) -> torch.Tensor:
        return self.scale * inner.local_value()(x)


RAN_IN: list[str] = []
"""Names of the threads in which `Prompt` did something, in order."""


@hosted
class Prompt(nn.Module):
    """A small layer whose author promises that it waits for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    @remote(inline=True)
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        RAN_IN.append(f"forward {threading.current_thread().name}")
        y = x * self.scale
        if y.requires_grad:
            y.register_hook(lambda _: RAN_IN.append(f"backward {threading.current_thread().name}"))
        return y


@hosted
class Hooked(nn.Module):
    """Its gradient depends on the mode that the module has in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient * (2.0 if self.training else 1.0))
        return y


@hosted
class WritingLate(nn.Module):
    """A hook of it writes to a parameter in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.count = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        if y.requires_grad:
            y.register_hook(self.note)
        return y

    def note(self, _: torch.Tensor) -> None:
        with torch.no_grad():
            self.count += 1


@hosted
class Recomputing(nn.Module):
    """A layer with dropout and running statistics that the backward computes again."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 64), nn.BatchNorm1d(64), nn.Dropout(0.5), nn.Linear(64, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = checkpoint(self.layers, x, use_reentrant=False)
        return y


@hosted
class Dropping(nn.Module):
    """Dropout that the backward computes again. Before each computation another thread draws, each time more."""

    times = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor, again: bool = True) -> torch.Tensor:
        y: torch.Tensor = checkpoint(self.part, x, use_reentrant=False) if again else self.part(x)
        return y

    def part(self, x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=torch.rand, args=(next(self.times),))
        thread.start()
        thread.join()
        return nn.functional.dropout(x * self.scale, 0.5)


@hosted
class Noisy(nn.Module):
    """A layer whose backward adds noise to the gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        y.register_hook(lambda gradient: gradient + torch.randn_like(gradient))
        return y


@hosted
class Noting(nn.Module):
    """A module that changes nothing, unless it is asked to; then it notes that in three ways, and uses another one."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.noted: list[int] = []
        self.register_buffer("sum", torch.zeros(1))

    @remote
    def apply_to(self, x: torch.Tensor, other: Any, note: bool) -> torch.Tensor:
        """Applies the layer, and the other module besides if it notes."""
        if note:
            self.count = getattr(self, "count", 0) + 1
            self.noted.append(self.count)
            self.sum += 1
            other.local_value()(x)
        found: torch.Tensor = self.fc(x)
        return found

    @remote
    def counts(self) -> tuple[int, int, float]:
        """How often it has noted, in each of the ways."""
        return getattr(self, "count", 0), len(self.noted), self.sum.item()


OFFSET = torch.zeros(3, requires_grad=True)


@remote
def offset() -> torch.Tensor:
    """A leaf that belongs to no module."""
    return OFFSET


@hosted
class Offsetting(nn.Module):
    """Adds the leaf to its result, if it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, with_offset: bool) -> torch.Tensor:
        """The layer, with or without the offset."""
        found: torch.Tensor = self.fc(x)
        return found + OFFSET if with_offset else found


@hosted
class Scaling(nn.Module):
    """A small module of a trainer's own, which makes no promises."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x: torch.Tensor, before: Any = None) -> torch.Tensor:
        """Scales the input. It first calls a method of another object, if it gets one."""
        RAN_IN.append(threading.current_thread().name)
        if before is not None:
            before.rpc_sync().add()
        return x * self.scale


@hosted
class Delegating(nn.Module):
    """scale * (x + what a module of another owner makes of x)."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor, inner: Any) -> torch.Tensor:
        return self.scale * (x + inner.rpc_sync().forward(x))


@remote
def made_elsewhere(owner: str) -> Any:
    """A reference to a counter on another owner."""
    return rpc.remote(owner, Counter, args=(3,))


@remote
def add_there(counter: Any, amount: int) -> int:
    """Adds to a counter wherever it is."""
    return int(counter.rpc_sync().add(amount))


class Size(enum.IntEnum):
    """A whole number with a name."""

    LARGE = 3


@hosted
class Assorted:
    """Gives out values whose types change when they are sent, and bytes that it writes to afterwards."""

    def __init__(self) -> None:
        self.letters = bytearray(b"abc")
        self.values = [numpy.float32(1.5), numpy.int64(3), numpy.bool_(True), Size.LARGE, numpy.str_("text"), None]

    @remote
    def give(self) -> list[Any]:
        return [self.letters, {"others": (*self.values, slice(numpy.int32(1)))}]

    @remote
    def write(self) -> None:
        self.letters[0] = ord("z")

    @remote
    def describe(self, value: Any) -> str:
        return repr(value)

    @remote
    def give_complex(self) -> Any:
        return numpy.complex64(1)


@remote
def collected_objects() -> tuple[int, int]:
    """How many objects a full collection passes over, and at how many it looks."""
    return gc.get_freeze_count(), len(gc.get_objects())


@remote
def hold_interpreter(seconds: float) -> None:
    """One call into C in which no Python runs, on the event loop or in any thread."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


@hosted
class Pair:
    """Two tensors."""

    def __init__(self, first: torch.Tensor, second: torch.Tensor) -> None:
        self.both = first, second


@hosted
class WithExtraState(nn.Linear):
    """A module whose state has something besides parameters and buffers."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.extra = 0

    def get_extra_state(self) -> torch.Tensor:
        return torch.tensor([self.extra])

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.extra = int(state[0])

    @remote
    def set_extra(self, number: int) -> None:
        self.extra = number
