"""Hooks of hosted modules: those that would never run are refused, and those of a run are removed."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge, register_multi_grad_hook

from ps_service.hosting.hooks import check_hooks, hooked_nodes
from ps_wire.errors import InvalidArgumentError


def nothing(*_: Any) -> None:
    """A hook without an effect."""


def test_hooks_that_run_on_an_owner_are_taken() -> None:
    module = nn.Linear(2, 2)
    module.weight.register_hook(nothing)
    module.register_forward_hook(nothing)
    check_hooks("Linear", module)


def test_a_hook_after_accumulation_is_refused() -> None:
    module = nn.Linear(2, 2)
    module.bias.register_post_accumulate_grad_hook(nothing)
    with pytest.raises(InvalidArgumentError, match="post-accumulate-grad hook at parameter 'bias'"):
        check_hooks("Linear", module)


def test_a_hook_of_several_parameters_is_refused() -> None:
    module = nn.Linear(2, 2)
    handle = register_multi_grad_hook(list(module.parameters()), nothing)
    with pytest.raises(InvalidArgumentError, match="register_multi_grad_hook"):
        check_hooks("Linear", module)
    handle.remove()
    check_hooks("Linear", module)


def test_a_module_that_keeps_the_node_of_a_parameter_is_refused() -> None:
    module = nn.Linear(2, 2)
    module.node = get_gradient_edge(module.weight).node
    with pytest.raises(InvalidArgumentError, match="gradient of parameter 'weight'"):
        check_hooks("Linear", module)


def test_leaves_whose_node_has_a_hook_are_found() -> None:
    hooked, plain, frozen = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True), torch.ones(1)
    edges = [get_gradient_edge(each) for each in (hooked, plain)]
    edges[0].node.register_prehook(nothing)
    assert [id(each) for each in hooked_nodes([hooked, plain, frozen])] == [id(hooked)]


def test_calls_that_ask_at_the_same_time_are_no_hooks_for_each_other() -> None:
    # Calls on views share leaves, and so the nodes that accumulate their gradients.
    leaf = torch.ones(1, requires_grad=True)
    edge, found, together = get_gradient_edge(leaf), [], threading.Barrier(4)

    def ask() -> None:
        together.wait()
        for _ in range(2_000):
            found.extend(hooked_nodes([leaf]))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        sys.setswitchinterval(interval)
    assert not found
    del edge
