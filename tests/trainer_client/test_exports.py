"""Tests that the packages export exactly the listed names."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

import ps_service
import ps_wire.errors
import trainer_client

OFFERED = {
    "ps_service": ["RRef", "async_execution", "by_value", "hosted", "register_codec", "remote"],
    "trainer_client": [
        "BF16",
        "FP16",
        "FTRL",
        "SGD",
        "Adagrad",
        "AfterSightings",
        "Apply",
        "Async",
        "BoundedStaleness",
        "CancelledCallError",
        "Choice",
        "Client",
        "ClosedError",
        "Communicator",
        "Compensate",
        "ConnectionState",
        "Constant",
        "Context",
        "ContextEndedError",
        "ContextLostError",
        "DeadlineExceededError",
        "DiLoCo",
        "DistributedOptimizer",
        "DistributedScheduler",
        "DrainingError",
        "Eviction",
        "ForeignHandleError",
        "Int8",
        "InternalError",
        "InvalidArgumentError",
        "LazyAdam",
        "LocalSGD",
        "LocalSteps",
        "LookedUp",
        "NameConflictError",
        "NonFiniteGradientError",
        "Normal",
        "NotAllowedError",
        "OptimizerWithTables",
        "OverloadedError",
        "PartialRowWiseAdam",
        "Pending",
        "Policy",
        "PowerSGD",
        "Progress",
        "PsError",
        "Quorum",
        "RRef",
        "RandomK",
        "Reject",
        "RemoteError",
        "RemoteModule",
        "RemoteObject",
        "RemoteParameter",
        "Replica",
        "Replicas",
        "RowGroup",
        "RowWiseAdagrad",
        "Scale",
        "SchedulerWithTables",
        "SessionLostError",
        "Sign",
        "StaleHandleError",
        "StepNumbers",
        "Stepped",
        "Sync",
        "Table",
        "TensorBoard",
        "TooLargeError",
        "TopK",
        "UnavailableError",
        "Uniform",
        "UnknownMethodError",
        "UnknownNameError",
        "WithProbability",
        "Zeros",
        "Zstd",
        "by_value",
        "connect",
        "current_context",
        "progress",
        "register_codec",
    ],
}


@pytest.mark.parametrize("package", OFFERED)
def test_the_names_are_these_and_sorted(package: str) -> None:
    assert importlib.import_module(package).__all__ == OFFERED[package] == sorted(OFFERED[package], key=_place)


def _place(name: str) -> tuple[bool, bool, str]:
    """Names in capitals first, then classes, then functions."""
    return not name.isupper(), not name[0].isupper(), name


@pytest.mark.parametrize("package", OFFERED)
def test_nothing_public_is_left_out(package: str) -> None:
    module = importlib.import_module(package)
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name != "annotations"
    }
    assert public == set(module.__all__)


@pytest.mark.parametrize("package", OFFERED)
def test_every_name_can_be_imported_and_has_a_docstring(package: str) -> None:
    names: dict[str, object] = {}
    exec(f"from {package} import *", names)
    for name in OFFERED[package]:
        assert names[name].__doc__, name


def test_trainers_can_catch_every_error_by_its_name() -> None:
    errors = {
        name for name, value in vars(ps_wire.errors).items() if isinstance(value, type) and name.endswith("Error")
    }
    assert errors <= set(trainer_client.__all__)
    assert all(getattr(trainer_client, name) is getattr(ps_wire.errors, name) for name in errors)


def test_the_two_kinds_of_reference_are_different_things() -> None:
    assert ps_service.RRef is not trainer_client.RRef
