"""Hosted modules that reach their layers and parameters in unusual ways."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ps_service import RRef, hosted, remote

SIZE = 4


@hosted
class Compiled(nn.Module):
    """Compiled as a whole, or in part."""

    def __init__(self, backend: str, whole: bool) -> None:
        super().__init__()
        self.first = nn.Linear(SIZE, SIZE)
        block = nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU())
        self.block = block if whole else torch.compile(block, backend=backend)
        if whole:
            self.compile(backend=backend)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(torch.tanh(self.first(x)))


@hosted
class HookedParameters(nn.Module):
    """Hooks on parameters, one of which is removed again, and one of which needs the module."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE, SIZE)
        self.register_buffer("mask", (torch.arange(SIZE) % 2).float())
        self.layer.weight.register_hook(lambda gradient: gradient * self.mask)
        self.layer.weight.register_hook(lambda gradient: gradient + 1)
        self.handle = self.layer.bias.register_hook(lambda gradient: gradient * 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)

    @remote
    def release(self) -> None:
        self.handle.remove()


@hosted
class HookedResult(nn.Module):
    """A hook on what it computes that needs a parameter on the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE, SIZE)
        self.gain = nn.Parameter(torch.full((SIZE,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        y.register_hook(lambda gradient: gradient * self.gain.detach())
        return y * self.gain


WEIGHT = nn.Parameter(torch.ones(SIZE))


@hosted
class Unreachable(nn.Module):
    """Computes with its parameter in ways that cannot be followed."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.weight = WEIGHT if way == "global" else nn.Parameter(torch.ones(SIZE))
        self.way = way
        self.numbers = self._generator()
        with torch.enable_grad():
            object.__setattr__(self, "computed", self.weight * 2)
        type(self).of_class = self.weight

    def _generator(self) -> Any:
        while True:
            yield self.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.way == "global":
            return x * WEIGHT
        if self.way == "generator":
            return x * next(self.numbers)
        return x * (self.computed if self.way == "computed before" else self.of_class)

    @remote
    def kept(self, x: torch.Tensor) -> RRef:
        return RRef({"out": self.forward(x)})


@hosted
class Borrowing(nn.Module):
    """Computes with another hosted module, which it has from its constructor or looks up when it is called."""

    def __init__(self, other: RRef, way: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(SIZE))
        self.way = way
        self.rref = other
        self.others = [other.local_value()]
        if way == "registered":
            self.other = other.local_value()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        other = {"list": self.others[0], "reference": None, "registered": getattr(self, "other", None)}[self.way]
        return (other or self.rref.local_value())(x * self.weight)


@hosted
class PostAccumulating(nn.Module):
    """A hook that would need gradients to be accumulated."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE, SIZE)
        self.layer.bias.register_post_accumulate_grad_hook(lambda parameter: None)


@hosted
class Transforming(nn.Module):
    """Uses what torch.func makes of functions of its parameters and of its input."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        self.way = way

    def _loss(self, parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(self.first, parameters, (x,)).tanh().square().sum()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parameters = dict(self.first.named_parameters())
        y = self.second(self.first(x).tanh())
        if self.way == "vmap of grad":
            found = torch.func.vmap(torch.func.grad(self._loss), in_dims=(None, 0))(parameters, x)
            return y * found["weight"].sum((1, 2))[:, None]
        if self.way == "grad of grad":
            inner = torch.func.grad(lambda z: self.second(self.first(z).tanh()).square().sum())
            return y * torch.func.grad(lambda z: inner(z).square().sum())(x)
        if self.way == "hooks of its own":
            with torch.autograd.graph.save_on_cpu():
                return y * torch.func.grad(self._loss)(parameters, x)["weight"].sum()
        transform = {"jacrev": torch.func.jacrev, "jacfwd": torch.func.jacfwd, "hessian": torch.func.hessian}[self.way]
        return y * transform(lambda z: self.second(z).tanh().sum())(x).sum()


@hosted
class Aliasing(nn.Module):
    """Reaches the memory of its parameters under other names.

    Args:
        early: What the constructor keeps.
        late: What each forward keeps.
    """

    def __init__(self, early: str = "", late: str = "") -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE, SIZE)
        self.other = nn.Linear(SIZE, SIZE)
        self.late = late
        weight = self.layer.weight.detach()
        if early == "tied":
            self.other.weight.data = self.layer.weight.data
        elif early == "row":
            self.row = nn.Parameter(weight[1])
        elif early == "buffer":
            self.register_buffer("kept", weight[1:])
        elif early == "columns":
            whole = torch.randn(SIZE, 2 * SIZE)
            self.layer.weight.data, self.other.weight.data = whole[:, :SIZE], whole[:, SIZE:]
        elif early == "norm":
            torch.nn.utils.spectral_norm(self.layer)
        elif early:
            self.kept = {"array": weight.numpy(), "list": [weight.t()], "copies": [weight.clone().numpy()]}[early]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.late:
            self.noted = {"detached": self.layer.weight.detach(), "view": {"deep": [self.layer.weight.t()]}}[self.late]
        return self.other(torch.tanh(self.layer(x)))


@hosted
class Written(nn.Module):
    """Methods that write to its parameters, in every way."""

    def __init__(self, size: int = SIZE) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 3.0))
        self.extra = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight.square()

    @remote
    @torch.no_grad()
    def change(self, way: str) -> float:
        if way == "clamp_":
            self.weight.clamp_(max=1.0)
        elif way == "copy_":
            self.weight.copy_(torch.ones_like(self.weight))
        elif way == "data":
            self.weight.data = torch.ones_like(self.weight)
        elif way == "data in place":
            self.weight.data.clamp_(max=1.0)
        elif way == "numpy":
            self.weight.detach().numpy().fill(1.0)
        elif way == "init":
            nn.init.ones_(self.weight)
        elif way == "raises":
            self.weight.fill_(1.0)
            raise ZeroDivisionError
        elif way == "shape":
            self.weight.data = torch.ones(SIZE + 1)
        elif way == "replaced":
            self.weight = nn.Parameter(torch.ones(SIZE))
        elif way == "deleted":
            del self.weight
        elif way == "added":
            self.new = nn.Parameter(torch.ones(SIZE))
        elif way == "module added":
            self.layer = nn.Linear(2, 2)
        elif way == "backward":
            with torch.enable_grad():
                self.weight.sum().backward()
        return float(self.weight[0]) if hasattr(self, "weight") else 0.0

    @remote
    def read(self) -> float:
        return float(self.weight.detach()[0])

    @remote
    def freeze(self, frozen: bool) -> None:
        self.weight.requires_grad_(not frozen)

    @remote
    def freeze_all(self) -> None:
        self.requires_grad_(False)


class _Product(torch.autograd.Function):
    """Keeps what it needs where torch does not see it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.x, ctx.weight = x, weight.detach()
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * ctx.weight, gradient * ctx.x


@hosted
class WithFunction(nn.Module):
    """Uses an autograd function of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((SIZE,), 3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Product.apply(x, self.weight)


@hosted
class RowWriter(nn.Module):
    """Rescales the rows that it looks up, as some embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, SIZE, max_norm=0.5)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.table(rows)


@hosted
class Totals(nn.Module):
    """Adds to plain tensors in place, and returns them."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        total = torch.zeros(50_000)
        self.total: Any = {"attribute": total, "list": [total], "closure": lambda: total, "buffer": None}[way]
        if way == "buffer":
            self.register_buffer("held", total)

    def _tensor(self) -> torch.Tensor:
        if self.way == "buffer":
            return self.held
        if self.way == "list":
            return self.total[0]
        return self.total() if self.way == "closure" else self.total

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = self._tensor()
        for part in total.split(5_000):  # slowly, so that others see it half done
            part.add_(x)
        return total

    @remote
    def view(self) -> dict[str, Any]:
        return {"total": [self._tensor()[1:]]}


@hosted
class Remembering(nn.Module):
    """Keeps what it returns, and writes to it in the next call."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.last is not None:
            self.last.zero_()
        self.last = x * 2
        return self.last


@hosted
class Normed(nn.Module):
    """Normalization layers between others."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SIZE, SIZE), nn.BatchNorm1d(SIZE, momentum=None), nn.BatchNorm1d(SIZE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)

    @remote
    def reset(self) -> None:
        self.body[1].reset_running_stats()


@hosted
class WithIntegers(nn.Module):
    """A parameter of integers beside another."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.table = nn.Parameter(torch.ones(2, dtype=torch.long), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * self.table
