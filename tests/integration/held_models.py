"""What the owners of `test_context_bytes.py` host."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Event, Thread
from typing import Final

import torch
from torch import nn

from ps_service import RRef, async_execution, hosted, remote


@hosted
class Table:
    """Leaves results on the owner."""

    @remote
    def zeros(self, count: int) -> torch.Tensor:
        return torch.zeros(count)

    @remote
    def left(self, count: int) -> RRef:
        return RRef(torch.zeros(count))


@hosted
class Squares(nn.Module):
    """Saves a result of its own, several times."""

    def __init__(self, raises: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.register_buffer("scale", torch.ones(1000))

    def forward(self, x: torch.Tensor, raises: bool = False) -> torch.Tensor:
        y = (x * self.weight) ** 2
        if raises:
            raise ValueError("after something was saved")
        return y.exp() + y.sigmoid()


@hosted
class Weighting(nn.Module):
    """Saves as many elements as the value behind a handle has."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: RRef) -> torch.Tensor:
        found: torch.Tensor = ((x.local_value() + 1) * self.weight).sum()
        return found


@remote
def grown(x: torch.Tensor) -> torch.Tensor:
    """Borrows no module. Its graph keeps the argument and the result."""
    return (x * x).exp()


go_on: Final = Event()


@remote
@async_execution
def doubled_later(x: RRef, fails: bool) -> Future[torch.Tensor]:
    """Twice the value behind a handle, by another thread, once it may go on."""
    later: Future[torch.Tensor] = Future()

    def finish() -> None:
        assert go_on.wait(30)
        if fails:
            later.set_exception(ValueError("later"))
        else:
            later.set_result(x.local_value() * 2)

    Thread(target=finish).start()
    return later
