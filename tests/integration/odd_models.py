"""Hosted classes whose state is not what torch expects, and code that does not come to an end."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn, optim

from ps_service import RRef, async_execution, hosted, remote

BEGUN, HOLD = threading.Event(), threading.Event()
"""Set by code that has begun to hang; it hangs until the other is set."""


@hosted
class Locked:
    """Gives its state under its lock, as one does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @remote
    def hang(self) -> None:
        with self._lock:
            BEGUN.set()
            HOLD.wait()

    def state_dict(self) -> dict[str, Any]:
        with self._lock:
            return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@hosted
class HangingOptimizer(optim.Optimizer):
    """Its step does not end."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:
        BEGUN.set()
        HOLD.wait()


@hosted
class HangingNet(nn.Module):
    """So large that steps wait for the end of reads; one of its methods reads without end."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3_000_000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight.sum() * x.sum()

    @remote
    def hang(self) -> float:
        BEGUN.set()
        HOLD.wait()
        return float(self.weight[0])


@hosted
class Raising:
    """Its state ends the process, if it can."""

    @remote
    def get(self) -> int:
        return 1

    def state_dict(self) -> dict[str, Any]:
        raise SystemExit(3)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@hosted
class MasterWeights(optim.Optimizer):
    """Steps a copy of each parameter in more precision, and keeps something that belongs to none of them."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.state["common"] = {"steps": self.state.get("common", {"steps": 0})["steps"] + 1}
        for parameter in self.param_groups[0]["params"]:
            master = self.state[parameter].setdefault("master", parameter.detach().double().clone())
            master.sub_(self.param_groups[0]["lr"] * parameter.grad)
            parameter.copy_(master)


@hosted
class OddBuffers(nn.Module):
    """A buffer that is set later, one that is taken away, one that grows, and an extra state that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("late", None)
        self.register_buffer("gone", torch.ones(1))
        self.register_buffer("seen", torch.zeros(0))
        self.history: list[float] = []

    @remote
    def use(self) -> list[Any]:
        self.late = torch.ones(3)
        self.gone = None
        self.seen = torch.cat([self.seen, torch.ones(1)])
        self.history.append(len(self.history))
        return [self.late, self.gone, self.seen, list(self.history)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight

    def get_extra_state(self) -> torch.Tensor:
        return torch.tensor(self.history)

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.history = state.tolist()


@hosted
class Holder:
    """Hands out a parameter and a leaf of its own."""

    def __init__(self) -> None:
        self._weight = nn.Parameter(torch.zeros(2))
        self._leaf = torch.ones(2, requires_grad=True)

    @remote
    def leaf(self) -> torch.Tensor:
        return self._leaf

    @remote
    def weight(self) -> RRef:
        return RRef(self._weight)

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self._weight.detach()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._weight.data.copy_(state["weight"])


@hosted
class Slow(nn.Module):
    """Takes until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        BEGUN.set()
        HOLD.wait()
        return x * self.weight


@hosted
class Later:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self._futures: list[Any] = []

    @remote
    @async_execution
    def wait(self) -> Any:
        future: torch.futures.Future[int] = torch.futures.Future()
        self._futures.append(future)
        BEGUN.set()
        return future

    @remote
    def answer(self) -> None:
        for future in self._futures:
            future.set_result(7)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
