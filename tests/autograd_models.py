"""Modules for the tests of autograd and training: what people write, and what is easy to get wrong."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from ps_service import RRef, hosted, remote
from tests.custom_functions import FailingBackward

PATIENCE = 60.0
"""Seconds after which a wait at a barrier fails the test, with a message."""

_barriers: dict[str, threading.Barrier] = {}
_events: dict[str, threading.Event] = {}
_lock = threading.Lock()


def barrier(name: str, parties: int) -> threading.Barrier:
    """The barrier of that name, for all owners of this process."""
    with _lock:
        return _barriers.setdefault(name, threading.Barrier(parties, timeout=PATIENCE))


def event(name: str) -> threading.Event:
    """The event of that name, for all owners of this process."""
    with _lock:
        return _events.setdefault(name, threading.Event())


def rendezvous(name: str, parties: int) -> None:
    try:
        barrier(name, parties).wait()
    except threading.BrokenBarrierError:
        raise RuntimeError(f"no other call came to {name!r} in time: the calls run one after the other") from None


class _MeetBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, name: str, parties: int) -> torch.Tensor:
        ctx.meeting = (name, parties)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        rendezvous(*ctx.meeting)
        return gradient, None, None


@hosted
class MeetsOnTheWayBack(nn.Module):
    """A linear layer whose backward goes on only when as many of them as agreed have come to it."""

    def __init__(self, size: int, name: str, parties: int) -> None:
        super().__init__()
        self.inner = nn.Linear(size, size)
        self.meeting = (name, parties)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _MeetBackward.apply(self.inner(x), *self.meeting)


@hosted
class Meets(nn.Module):
    """A linear layer whose forward goes on only when as many callers as agreed have come to it."""

    def __init__(self, size: int, name: str, parties: int) -> None:
        super().__init__()
        self.inner = nn.Linear(size, size)
        self.meeting = (name, parties)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rendezvous(*self.meeting)
        return self.inner(x)


@hosted
class MeetsBetween(nn.Module):
    """A linear layer that is used before and after as many callers as the call says have come to it."""

    def __init__(self, size: int, name: str) -> None:
        super().__init__()
        self.inner = nn.Linear(size, size)
        self.name = name

    def forward(self, x: torch.Tensor, parties: int = 1) -> torch.Tensor:
        y = self.inner(x)
        rendezvous(f"{parties} in {self.name}", parties)
        return y + self.inner(2 * x)


@hosted
class Waits(nn.Module):
    """Says that a forward has begun, and waits until it may go on; has a setting that can be changed meanwhile."""

    def __init__(self, rows: int, columns: int, name: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(rows, columns))
        self.begun, self.go = f"{name} has begun", f"{name} may go on"
        self.setting = "as it was"

    def forward(self, x: torch.Tensor, inner: RRef | None = None) -> torch.Tensor:
        event(self.begun).set()
        if not event(self.go).wait(PATIENCE):
            raise RuntimeError("this forward was not released in time")
        y = x + self.weight[0, 0]
        return y if inner is None else inner.local_value()(y)

    @remote
    def set(self, setting: str) -> None:
        self.setting = setting

    @remote
    def get(self) -> str:
        return self.setting


@hosted
class Explodes(nn.Module):
    """A linear layer whose backward raises when the call says so."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(size, size)

    def forward(self, x: torch.Tensor, explode: bool = False) -> torch.Tensor:
        y = self.inner(x)
        return FailingBackward.apply(y) if explode else y


@hosted
class Tied(nn.Module):
    """One matrix used as an embedding and as the layer behind it."""

    def __init__(self, rows: int, size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, size)
        self.head = nn.Linear(size, rows, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.table(ids)))


@hosted
class Normed(nn.Module):
    """Layers with computed weights: one parametrized, one recomputed by a hook that leaves it in an attribute."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.first = parametrizations.weight_norm(nn.Linear(size, size))
        self.second = nn.utils.spectral_norm(nn.Linear(size, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


class Two(NamedTuple):
    first: nn.Module
    second: nn.Module


@hosted
class Arranged(nn.Module):
    """Finds its layers through plain attributes: a list, a list of lists, a dict, a named tuple, a bound method."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size, size) for _ in range(8))
        self.listed = [self.layers[0], self.layers[1]]
        self.nested = [[self.layers[2]], [self.layers[3]]]
        self.named = OrderedDict(a={"b": self.layers[4]})
        self.two = Two(self.layers[5], self.layers[6])
        self.method = self.layers[7].forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.listed:
            x = torch.tanh(layer(x))
        for (layer,) in self.nested:
            x = torch.tanh(layer(x))
        self.named.move_to_end("a")
        x = torch.tanh(self.named["a"]["b"](x))
        x = self.two.second(torch.tanh(self.two.first(x)))
        return self.method(x)


@hosted
class Watched(nn.Module):
    """Forward hooks: one that changes an output, and a bound method that keeps one for the rest of the forward."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(size, size)
        self.outer = nn.Linear(size, size)
        self.inner.register_forward_hook(self._keep)
        self.outer.register_forward_pre_hook(_halved)
        self.register_forward_hook(_doubled)

    def _keep(self, module: nn.Module, args: Any, output: torch.Tensor) -> None:
        self.kept = output

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.tanh(self.inner(x))) * self.kept


def _halved(module: nn.Module, args: Any) -> Any:
    return (args[0] / 2,)


def _doubled(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 2


@hosted
class Steered(nn.Module):
    """Hooks that change gradients on their way back; one is a bound method."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(size, size)
        self.outer = nn.Linear(size, size)
        self.factor = 3.0
        self.inner.register_full_backward_hook(self._stretch)
        self.outer.register_full_backward_pre_hook(_halved_gradient)

    def _stretch(self, module: nn.Module, inputs: Any, outputs: Any) -> Any:
        return (inputs[0] * self.factor,)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.tanh(self.inner(x)))


def _halved_gradient(module: nn.Module, outputs: Any) -> Any:
    return (outputs[0] / 2,)


@hosted
class Averaging(nn.Module):
    """Keeps a running mean in a buffer that every training forward binds anew."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(size, size)
        self.register_buffer("mean", torch.zeros(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
        return self.inner(x - self.mean)

    @remote
    def where(self) -> torch.Tensor:
        """The buffer itself."""
        return self.mean


@hosted
class Frozen(nn.Module):
    """Keeps its BatchNorm in evaluation mode, whatever its own is; the first layer is not trained."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.first = nn.Linear(size, size).requires_grad_(False)
        self.norm = nn.BatchNorm1d(size)
        self.last = nn.Linear(size, size)
        self.norm.running_mean.fill_(0.5)

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x)))


@hosted
class Regularized(nn.Module):
    """BatchNorm and Dropout, which have two modes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(size, size)
        self.norm = nn.BatchNorm1d(size)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(self.inner(x)))


@hosted
class Flat(nn.Module):
    """Two matrices that are views of one piece of memory."""

    def __init__(self, size: int) -> None:
        super().__init__()
        memory = torch.randn(2, size, size)
        self.first = nn.Parameter(memory[0])
        self.second = nn.Parameter(memory[1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.first) @ self.second


@hosted
class ChannelsLast(nn.Module):
    """A convolution whose weight and output have the channels of a pixel side by side in memory."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3)
        self.norm = nn.BatchNorm2d(channels)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = self.conv(x)
        assert maps.is_contiguous(memory_format=torch.channels_last)
        return F.max_pool2d(F.relu(self.norm(maps)), 2)


@hosted
class Borrows(nn.Module):
    """Runs another hosted module before its own layer."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(size, size)

    def forward(self, x: torch.Tensor, other: RRef) -> torch.Tensor:
        return self.inner(torch.tanh(other.local_value()(x)))


@hosted
class SpoilsItself(nn.Module):
    """Writes to a tensor that its own backward needs, which torch notices."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.inner(x))
        y.mul_(2)
        return y


@hosted
class Parallel(nn.Module):
    """Two parameters that every step moves alike; gives out what a forward sees of them beside its result."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.eye(size))
        self.second = nn.Parameter(torch.eye(size))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = torch.sin(x @ self.first) + torch.sin(x @ self.second)
        return y, self.first.detach(), self.second.detach()


@hosted
class Extra(nn.Module):
    """Keeps something beside its tensors in its state, and is particular about it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(size, size)
        self.note = {"text": "fresh", "numbers": [1, 2.5]}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)

    def get_extra_state(self) -> dict[str, Any]:
        return self.note

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.note = state
        if state["text"] == "refuse this":
            raise ValueError("this note is refused")


@hosted
class Expanded(nn.Module):
    """Has a buffer whose elements share memory, to which torch copies nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.register_buffer("ones", torch.ones(1).expand(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)
