"""Tests that it is told whether a call has changed the state of a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ps_service.hosting.marks import marks_of
from ps_service.hosting.objects import HostedObject
from ps_service.parameters.locks import ParameterLocks


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def get_extra_state(self) -> int:
        return self.count

    def set_extra_state(self, state: int) -> None:
        self.count = state


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.BatchNorm1d(3), nn.Linear(3, 2)])


def write(net: Any) -> None:
    net.parts[0].running_mean.add_(1)


def replace(net: Any) -> None:
    net.parts[0].running_mean = torch.ones(3)


def register(net: Any) -> None:
    net.parts[1].register_buffer("cache", torch.ones(1))


def swap_with_none(net: Any) -> None:
    norm = net.parts[0]
    norm.running_mean, norm.running_var = None, norm.running_mean


def exchange(net: Any) -> None:
    net.parts[0] = nn.BatchNorm1d(3)


BUFFERS: list[Callable[[Any], None]] = [write, replace, register, swap_with_none, exchange]


@pytest.mark.parametrize("change", BUFFERS)
def test_buffers_that_were_changed(change: Callable[[Any], None]) -> None:
    hosted = HostedObject("ps0", Net(), ParameterLocks())
    before = marks_of(hosted)
    assert marks_of(hosted).same_buffers(before)
    change(hosted.value)
    assert not marks_of(hosted).same_buffers(before)


def test_an_extra_state_of_a_part_that_came_later() -> None:
    hosted = HostedObject("ps0", Net(), ParameterLocks())
    assert marks_of(hosted).extra == []
    part = Counting()
    hosted.value.parts.append(part)
    before = marks_of(hosted)
    part.count += 1
    assert len(before.extra) == 1
    assert marks_of(hosted).extra != before.extra


def test_frozen_parameters() -> None:
    hosted = HostedObject("ps0", Net(), ParameterLocks())
    before = marks_of(hosted)
    hosted.value.parts[1].bias.requires_grad_(False)
    assert marks_of(hosted).trained != before.trained
