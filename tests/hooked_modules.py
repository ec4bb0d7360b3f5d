"""Hosted modules with hooks of every kind."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ps_service import hosted, remote
from tests.odd_modules import SIZE


def _several(net: HookedOddly) -> None:
    torch.autograd.graph.register_multi_grad_hook([net.layer.weight, net.layer.bias], lambda gradients: None)


def _node(net: HookedOddly) -> None:
    node = torch.autograd.graph.get_gradient_edge(net.layer.bias).node
    node.register_prehook(lambda gradients: None)
    net.nodes = [node]


@hosted
class HookedOddly(nn.Module):
    """Registers hooks that hosted modules cannot have, or may have.

    Args:
        early: What the constructor does.
        late: What each forward does.
    """

    def __init__(self, early: str = "", late: str = "") -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE, SIZE)
        self.late = late
        self.seen: list[int] = []
        if early == "several":
            _several(self)
        elif early == "node":
            _node(self)
        elif early == "any of several":
            both = [self.layer.weight, self.layer.bias]
            torch.autograd.graph.register_multi_grad_hook(both, lambda _: self.seen.append(1), mode="any")
        elif early == "hook":
            self.layer.bias.register_hook(lambda gradient: gradient * 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        if self.late == "hook":
            self.layer.bias.register_hook(lambda gradient: gradient * 0.5)
        elif self.late == "removed":
            handle = self.layer.bias.register_hook(lambda gradient: gradient * 0.5)
            handle.remove()
        elif self.late == "post-accumulate":
            self.layer.bias.register_post_accumulate_grad_hook(lambda parameter: None)
        elif self.late == "several":
            _several(self)
        elif self.late == "node":
            _node(self)
        z = torch.tanh(y)
        if self.late == "results":
            torch.autograd.graph.register_multi_grad_hook(
                [y, z], lambda each: self.seen.append(len([gradient for gradient in each if gradient is not None]))
            )
            y.grad_fn.register_hook(lambda inputs, outputs: self.seen.append(3))
        return z

    @remote
    def install(self) -> None:
        self.layer.bias.register_hook(lambda gradient: gradient * 0.5)

    @remote
    def noted(self) -> list[int]:
        return self.seen


@hosted
class HookedModule(nn.Module):
    """Hooks of modules, of every kind, and of its state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE, SIZE)
        self.gain = nn.Parameter(torch.ones(SIZE))
        self.register_buffer("saves", torch.zeros(()))
        self.layer.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        self.layer.register_forward_hook(lambda module, args, output: output * self.gain)
        self.layer.register_full_backward_pre_hook(lambda module, outputs: (outputs[0] * 3,))
        self.layer.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * self.gain.detach(),))
        self.register_state_dict_pre_hook(lambda module, prefix, keep: module.saves.fill_(5))
        self.register_state_dict_post_hook(_doubled)
        self.register_load_state_dict_post_hook(_loaded)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x))


def _loaded(module: nn.Module, keys: Any) -> None:
    module.saves.fill_(1)


def _doubled(module: nn.Module, state: dict[str, torch.Tensor], prefix: str, metadata: Any) -> None:
    state["saves"] = state["saves"] * 2
