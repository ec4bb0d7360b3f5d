"""Tests that the running counts of objects equal a full count."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

from ps_service.hosting.objects import HostedObject
from ps_service.hosting.registry import Registry
from ps_service.metrics.object_counts import KINDS, ObjectCounts, kind_of
from ps_service.parameters.locks import ParameterLocks
from ps_service.tables.hosted_table import HostedTable
from ps_service.training.optimizers import Covered, HostedOptimizer
from ps_service.training.schedulers import HostedScheduler
from ps_wire.tables.options import SGD, Zeros
from trainer_client.tables.table_spec import TableSpec

TRAINER = b"t" * 16


class Shelf:
    """A registry, and objects to put there."""

    def __init__(self) -> None:
        self.object_counts = ObjectCounts()
        self.registry = Registry("ps0", self.object_counts)
        self.parameter_locks = ParameterLocks()

    def add(self, value: object, name: str = "") -> HostedObject:
        return self.registry.add(HostedObject("ps0", value, self.parameter_locks, name))

    def optimizer_of(self, hosted: HostedObject) -> HostedOptimizer:
        covered = [
            Covered(hosted.ref._replace(parameter=name), parameter, hosted.parameter_state(name))
            for name, parameter in hosted.parameters.items()
        ]
        return HostedOptimizer(optim.SGD, [(covered, {})], {"lr": 0.1}, True, False, self.parameter_locks)

    def check(self) -> None:
        """Counts everything, and compares."""
        object_counts, objects = self.object_counts, self.registry.objects()
        parameters = {
            id(each): each for hosted in objects for each in hosted.parameters.values() if not hosted.is_table
        }
        assert object_counts.parameters.elements == sum(each.numel() for each in parameters.values())
        assert object_counts.parameters.nbytes == sum(each.nbytes for each in parameters.values())
        assert object_counts.kinds == {kind: sum(kind_of(each.value) == kind for each in objects) for kind in KINDS}
        named = {each.name: each.value for each in objects if each.name and isinstance(each.value, HostedOptimizer)}
        assert object_counts.optimizers == named


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def test_every_kind_is_told_apart(shelf: Shelf) -> None:
    net = shelf.add(nn.Linear(3, 2), "net")
    optimizer = shelf.optimizer_of(net)
    shelf.add(optimizer, "opt")
    shelf.add(HostedScheduler(lr_scheduler.StepLR, optimizer, (1,), {}), "scheduler")
    shelf.add(torch.ones(3))
    shelf.add(nn.Parameter(torch.ones(3)))
    shelf.add({"a": 1})
    settings = TableSpec("items", 2, None, torch.float32, Zeros(), SGD(), 0, None, (), None).settings(["ps0"])
    table = HostedTable(**settings)
    shelf.add(table, "items")
    object_counts = shelf.object_counts
    assert object_counts.kinds == {"module": 1, "optimizer": 1, "scheduler": 1, "table": 1, "tensor": 2, "other": 1}
    # Rows of tables come and go, and are no parameters.
    assert (object_counts.parameters.elements, object_counts.parameters.nbytes) == (11, 44)
    assert object_counts.optimizers == {"opt": optimizer} and object_counts.tables == {"items": table}
    shelf.registry.delete("items")
    assert not object_counts.tables and not object_counts.kinds["table"]
    shelf.check()


def test_shared_parameters_count_once_until_the_last_object_is_gone(shelf: Shelf) -> None:
    inner = nn.Linear(3, 2, dtype=torch.float64)
    shelf.add(nn.Sequential(inner, nn.Linear(2, 2)), "outer")
    shelf.add(inner, "inner")
    assert (shelf.object_counts.parameters.elements, shelf.object_counts.parameters.nbytes) == (14, 8 * 8 + 6 * 4)
    shelf.registry.delete("outer")
    assert (shelf.object_counts.parameters.elements, shelf.object_counts.parameters.nbytes) == (8, 64)
    shelf.registry.delete("inner")
    assert (shelf.object_counts.parameters.elements, shelf.object_counts.parameters.nbytes) == (0, 0)
    shelf.check()


def test_objects_that_go_with_their_last_handle_and_come_back_are_counted(shelf: Shelf) -> None:
    hosted = shelf.add(nn.Linear(3, 2))
    shelf.registry.grant(TRAINER, hosted)
    shelf.registry.grant(TRAINER, hosted)
    shelf.check()
    shelf.registry.revoke(TRAINER, [hosted.ref.object_id])
    assert shelf.object_counts.parameters.elements == 8
    shelf.registry.forget(TRAINER)
    assert shelf.object_counts.parameters.elements == 0
    shelf.registry.restore(hosted)
    shelf.registry.restore(hosted)
    assert shelf.object_counts.kinds["module"] == 1
    shelf.check()


def test_an_optimizer_goes_with_its_module(shelf: Shelf) -> None:
    net = shelf.add(nn.Linear(3, 2), "net")
    shelf.registry.bind(shelf.add(shelf.optimizer_of(net), "opt"), [net])
    shelf.registry.delete("net")
    shelf.check()
    assert shelf.object_counts.optimizers == {}


def test_whatever_comes_and_goes_the_numbers_are_right(shelf: Shelf) -> None:
    chance, shared = random.Random(0), nn.Linear(2, 2)
    held: list[HostedObject] = []
    for number in range(300):
        if held and chance.random() < 0.45:
            gone = held.pop(chance.randrange(len(held)))
            if gone.name:
                shelf.registry.delete(gone.name)
            else:
                shelf.registry.revoke(TRAINER, [gone.ref.object_id])
        else:
            value = chance.choice([nn.Linear(3, 1), nn.Sequential(shared, nn.Linear(2, 1)), torch.ones(2), [number]])
            made = shelf.add(value, chance.choice(["", f"object{number}"]))
            shelf.registry.grant(TRAINER, made)
            held.append(made)
        if number % 20 == 0:
            shelf.check()
    shelf.check()
    assert len(shelf.registry) == len(held) > 0
