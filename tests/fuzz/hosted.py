"""What the owner of the fuzzer hosts: nothing in it waits, or works for long."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ps_service import RRef, hosted, remote


@hosted
class Net(nn.Module):
    """Two layers, and methods beside `forward`."""

    def __init__(self, inputs: int = 4, outputs: int = 2) -> None:
        super().__init__()
        if not 0 < inputs <= 64 or not 0 < outputs <= 64:
            raise ValueError("a net has 1 to 64 inputs and outputs")
        self.first = nn.Linear(inputs, 8)
        self.second = nn.Linear(8, outputs)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.second(self.first(x).relu())

    @remote
    def both(self, x: torch.Tensor, *, scale: float = 1.0) -> dict[str, Any]:
        y = self(x)
        return {"y": [y, (y * scale).relu()], "shape": tuple(y.shape)}


@hosted
class Echo:
    """A plain object that has a state."""

    def __init__(self, start: Any = 0) -> None:
        self.value = start

    @remote(inline=True)
    def echo(self, *args: Any, **kwargs: Any) -> Any:
        return (args, kwargs) if kwargs else args

    @remote
    def hand_out(self, value: Any) -> RRef:
        return RRef(value)

    @remote
    def fail(self, message: str) -> None:
        raise ValueError(message)

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]
