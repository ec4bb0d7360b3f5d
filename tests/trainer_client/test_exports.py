"""Tests that the packages export exactly the listed names."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

import ps_service
import ps_wire.errors
import trainer_client

OFFERED = {
    "ps_service": ["RRef", "TableRef", "async_execution", "by_value", "hosted", "register_codec", "remote"],
    "trainer_client": [
        "TLS",
        "Client",
        "Communicator",
        "ConnectionState",
        "Context",
        "DiLoCo",
        "DistributedOptimizer",
        "DistributedScheduler",
        "LocalSGD",
        "LocalSteps",
        "ModuleChange",
        "Pending",
        "PinnedModule",
        "PinnedTable",
        "Progress",
        "PsError",
        "RRef",
        "Reader",
        "RemoteModule",
        "RemoteObject",
        "RemoteParameter",
        "Replica",
        "Replicas",
        "Snapshot",
        "StepNumbers",
        "Stepped",
        "Table",
        "TensorBoard",
        "by_value",
        "codecs",
        "connect",
        "current_context",
        "errors",
        "policies",
        "progress",
        "tables",
    ],
    "trainer_client.codecs": [
        "BF16",
        "FP16",
        "Choice",
        "Int8",
        "PowerSGD",
        "RandomK",
        "Sign",
        "TopK",
        "Zstd",
        "register_codec",
    ],
    "trainer_client.errors": [
        "CancelledCallError",
        "ClosedError",
        "ContextEndedError",
        "ContextLostError",
        "DeadlineExceededError",
        "DrainingError",
        "ForeignHandleError",
        "InternalError",
        "InvalidArgumentError",
        "NameConflictError",
        "NonFiniteGradientError",
        "NotAllowedError",
        "ObjectMovedError",
        "OverloadedError",
        "PermissionDeniedError",
        "PsError",
        "QuotaError",
        "RemoteError",
        "ReplacedError",
        "RowsMovedError",
        "SessionLostError",
        "StaleHandleError",
        "StorageError",
        "TooLargeError",
        "UnauthenticatedError",
        "UnavailableError",
        "UnknownMethodError",
        "UnknownNameError",
    ],
    "trainer_client.policies": [
        "Apply",
        "Async",
        "BoundedStaleness",
        "Compensate",
        "Policy",
        "Quorum",
        "Reject",
        "Scale",
        "Sync",
    ],
    "trainer_client.tables": [
        "FTRL",
        "SGD",
        "Adagrad",
        "AfterSightings",
        "Change",
        "Constant",
        "Eviction",
        "LazyAdam",
        "LookedUp",
        "Normal",
        "OptimizerWithTables",
        "PartialRowWiseAdam",
        "RowGroup",
        "RowWiseAdagrad",
        "RowsRead",
        "SchedulerWithTables",
        "Table",
        "Uniform",
        "WithProbability",
        "Zeros",
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
    # Some are imported only now.
    offered = {name for name in module.__all__ if not isinstance(getattr(module, name), ModuleType)}
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name != "annotations"
    }
    assert public == offered


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
    assert errors == set(trainer_client.errors.__all__)
    assert all(getattr(trainer_client.errors, name) is getattr(ps_wire.errors, name) for name in errors)


def test_a_name_of_a_module_by_subject_is_told_where_it_stands() -> None:
    with pytest.raises(AttributeError, match=r"^trainer_client has no attribute 'Sync'; it is tc\.policies\.Sync$"):
        trainer_client.Sync  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no attribute 'Replcia'; did you mean 'Replica'\?$"):
        trainer_client.Replcia  # noqa: B018


def test_the_two_kinds_of_reference_are_different_things() -> None:
    assert ps_service.RRef is not trainer_client.RRef
