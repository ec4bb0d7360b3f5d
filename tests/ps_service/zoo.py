"""Many modules, of torch and of user code, each with arguments to call it with."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize


class Animal(NamedTuple):
    """How to make a module, and arguments for its forward."""

    make: Callable[[], nn.Module]
    args: Callable[[], tuple[Any, ...]]


def _floats(*shape: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randn(*shape),)


def _ids(count: int, *shape: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randint(0, count, shape),)


class Rows(nn.Module):
    """Submodules and parameters in a ModuleList, a ModuleDict, a ParameterList and a ParameterDict."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.heads = nn.ModuleDict({"left": nn.Linear(4, 2), "right": nn.Linear(4, 2)})
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))])
        self.shifts = nn.ParameterDict({"a": nn.Parameter(torch.zeros(4))})

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        for layer, scale in zip(self.layers, self.scales, strict=True):
            x = torch.tanh(layer(x)) * scale
        x = x + self.shifts["a"]
        return {name: head(x) for name, head in self.heads.items()}


class Tied(nn.Module):
    """One weight in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.out = nn.Linear(4, 7)
        self.out.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.embed(ids)))


class Twice(nn.Module):
    """One submodule under two names, and called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


class Pair(NamedTuple):
    left: nn.Module
    right: nn.Module


class Attributes(nn.Module):
    """Submodules and parameters in plain lists, tuples and dicts, nested too."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.scale, self.shift = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))
        self.as_list = [self.a]
        self.as_tuple = (self.b, "not a module")
        self.as_named = Pair(self.a, self.b)
        self.as_dict = {"c": self.c}
        self.as_ordered = OrderedDict(c=self.c)
        self.parameters_too = {"scale": [self.scale], "both": (self.scale, self.shift)}
        self.nested = [(self.a, {"deep": [self.b]}), (self.c, {"deep": []})]
        self.around = [self]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.as_list[0](x) + self.as_tuple[0](x)
        assert isinstance(self.as_tuple, tuple) and type(self.as_named) is Pair
        x = x + self.as_named.left(x) * self.as_named.right(x)
        x = x + self.as_dict["c"](x) + self.as_ordered["c"](x)
        scale, shift = self.parameters_too["both"]
        x = x * self.parameters_too["scale"][0] * scale + shift
        for module, more in self.nested:
            x = torch.tanh(module(x)) + sum((each(x) for each in more["deep"]), torch.zeros(()))
        assert self.around[0] is self
        return self.around[0].b(x)


class Hooked(nn.Module):
    """Hooks: functions, and methods that use the module's own parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.gain = nn.Parameter(torch.full((4,), 1.5))
        self.layer.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        self.layer.register_forward_hook(self._scale)
        self.register_forward_hook(lambda module, args, output: output + module.gain.sum())

    def _scale(self, module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        return output * self.gain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class HookedBack(nn.Module):
    """Hooks on the way back, which use plain attributes and parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.factor = 3.0
        self.second.register_full_backward_hook(self._scale)

    def _scale(self, module: nn.Module, inputs: Any, outputs: Any) -> Any:
        return tuple(gradient * module.factor for gradient in inputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


class Methods(nn.Module):
    """Chooses one of its own methods when it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.act = self._scaled
        self.acts = {"same": self._scaled}

    def _scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(x) + self.acts["same"](x).relu()


class Buffers(nn.Module):
    """Buffers of both kinds, written in place and replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("mask", torch.tensor([1.0, 0.0, 1.0, 1.0]), persistent=False)
        self.register_buffer("nothing", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.seen.add_(x.sum(0))
            self.mask = self.mask.roll(1)
        return x * self.weight * self.mask


class Holes(nn.Module):
    """Parameters that are None, and one that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)
        self.norm = nn.BatchNorm1d(4, affine=False)
        self.frozen = nn.Parameter(torch.full((4,), 2.0), requires_grad=False)
        self.register_parameter("missing", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layer(x)) * self.frozen if self.missing is None else x


class Lazy(nn.Module):
    """Remembers what it has computed or looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.order: Any = None
        self.found: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.order is None:
            self.order = list(reversed(self.layers))
            self.found = {"frozen": (self.frozen, "frozen"), "shift": self._shift}
        if not hasattr(self, "weights"):
            self.weights = {name: parameter for name, parameter in self.named_parameters()}
        for layer in self.order:
            x = torch.tanh(layer(x))
        return self.found["shift"](x) * self.weights["layers.0.bias"] * self.found["frozen"][0]

    def _shift(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers[0].bias


class Cached(nn.Module):
    """Keeps its last output, history and all."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.last: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = {"out": [self.layer(x)]}
        return self.last["out"][0] * 2


class Doubled(nn.Module):
    """A parametrization with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(2.0))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * self.factor


def _parametrized() -> nn.Module:
    layer = nn.Linear(4, 4)
    parametrize.register_parametrization(layer, "weight", Doubled())
    return nn.Sequential(layer, nn.Tanh())


def _old_weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)), nn.Tanh())


class Attention(nn.Module):
    """Attention over itself, and between sequences of different widths."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.MultiheadAttention(8, 2, batch_first=True)
        self.cross = nn.MultiheadAttention(8, 2, kdim=6, vdim=5, batch_first=True)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, _ = self.own(x, x, x)
        return self.cross(x, keys, values)


class Positions(nn.Module):
    """Uses a parameter through the functional interface, and slices of it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(9, 4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, self.table) + self.table[: ids.shape[1]]


ZOO: dict[str, Animal] = {
    "linear": Animal(lambda: nn.Linear(4, 3), _floats(5, 4)),
    "bilinear": Animal(lambda: nn.Bilinear(4, 3, 2), lambda: (torch.randn(5, 4), torch.randn(5, 3))),
    "conv": Animal(
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.ConvTranspose2d(3, 1, 3)), _floats(2, 1, 6, 6)
    ),
    "norms": Animal(
        lambda: nn.Sequential(nn.BatchNorm1d(4), nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.PReLU()), _floats(5, 4)
    ),
    "instance norm": Animal(lambda: nn.InstanceNorm1d(3, affine=True, track_running_stats=True), _floats(2, 3, 5)),
    "dropout": Animal(lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)), _floats(5, 4)),
    "rnn": Animal(lambda: nn.RNN(4, 3), _floats(5, 2, 4)),
    "lstm": Animal(lambda: nn.LSTM(4, 3, num_layers=2, bidirectional=True, dropout=0.3), _floats(5, 2, 4)),
    "gru": Animal(lambda: nn.GRU(4, 3, batch_first=True, bias=False), _floats(2, 5, 4)),
    "lstm parameter state": Animal(lambda: nn.LSTMCell(4, 3), _floats(2, 4)),
    "attention": Animal(Attention, lambda: (torch.randn(2, 3, 8), torch.randn(2, 4, 6), torch.randn(2, 4, 5))),
    "encoder layer": Animal(
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.1), _floats(2, 3, 8)
    ),
    "transformer": Animal(
        lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True), lambda: (torch.randn(2, 3, 8), torch.randn(2, 4, 8))
    ),
    "embedding": Animal(lambda: nn.Embedding(9, 4, padding_idx=0), _ids(9, 2, 5)),
    "sparse embedding": Animal(lambda: nn.Embedding(9, 4, sparse=True), _ids(9, 2, 5)),
    "embedding bag": Animal(lambda: nn.EmbeddingBag(9, 4, mode="mean"), _ids(9, 3, 5)),
    "lists and dicts": Animal(Rows, _floats(5, 4)),
    "tied weights": Animal(Tied, _ids(7, 5)),
    "one module twice": Animal(Twice, _floats(5, 4)),
    "plain attributes": Animal(Attributes, _floats(5, 4)),
    "hooks": Animal(Hooked, _floats(5, 4)),
    "backward hooks": Animal(HookedBack, _floats(5, 4)),
    "bound methods": Animal(Methods, _floats(5, 4)),
    "buffers": Animal(Buffers, _floats(5, 4)),
    "holes": Animal(Holes, _floats(5, 4)),
    "lazy attributes": Animal(Lazy, _floats(5, 4)),
    "cached output": Animal(Cached, _floats(5, 4)),
    "weight norm": Animal(lambda: parametrizations.weight_norm(nn.Linear(4, 4)), _floats(5, 4)),
    "spectral norm": Animal(lambda: parametrizations.spectral_norm(nn.Linear(4, 4)), _floats(5, 4)),
    "orthogonal": Animal(lambda: parametrizations.orthogonal(nn.Linear(4, 4)), _floats(5, 4)),
    "parametrized": Animal(_parametrized, _floats(5, 4)),
    "weight norm by hook": Animal(_old_weight_norm, _floats(5, 4)),
    "spectral norm by hook": Animal(lambda: nn.utils.spectral_norm(nn.Linear(4, 4)), _floats(5, 4)),
    "functional": Animal(Positions, _ids(9, 2, 5)),
}
"""By name."""


def born(name: str) -> nn.Module:
    """A module of the zoo, with the same numbers each time."""
    torch.manual_seed(1)
    return ZOO[name].make()


def fed(name: str, seed: int) -> tuple[Any, ...]:
    """Arguments for its forward."""
    torch.manual_seed(seed)
    return ZOO[name].args()
