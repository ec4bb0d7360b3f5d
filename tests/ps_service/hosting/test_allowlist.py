"""Allow-list: a class is found only by a name that was put there beforehand."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn, optim

from ps_service import hosted
from ps_service.hosting.allowlist import AllowList
from ps_wire.errors import NotAllowedError
from tests import half_marked, hosted_models


@hosted
class Own:
    """A class of this module."""

    @hosted
    class Inner:
        """A class inside a class."""


class Heir(Own):
    """Inherits from a hosted class, and is not hosted itself."""


@hosted
class OwnOptimizer(optim.SGD):
    """An optimizer of the user's own."""


@hosted
class OwnScheduler(optim.lr_scheduler.StepLR):
    """A scheduler of the user's own."""


@pytest.fixture
def listed() -> AllowList:
    return AllowList([sys.modules[__name__]])


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("torch.nn.Linear", nn.Linear),
        ("torch.nn.modules.linear.Linear", nn.Linear),
        ("torch.nn.LSTM", nn.LSTM),
        ("torch.nn.Sequential", nn.Sequential),
        ("torch.nn.TransformerEncoderLayer", nn.TransformerEncoderLayer),
    ],
)
def test_layers_of_torch_are_listed(name: str, cls: type) -> None:
    assert AllowList().hosted(name) is cls


def test_optimizers_and_schedulers_of_torch_are_listed() -> None:
    allowed = AllowList()
    assert allowed.optimizer("torch.optim.SGD") is optim.SGD
    assert allowed.optimizer("torch.optim.adam.Adam") is optim.Adam
    assert allowed.scheduler("torch.optim.lr_scheduler.StepLR") is optim.lr_scheduler.StepLR
    assert allowed.scheduler("torch.optim.lr_scheduler.ReduceLROnPlateau") is optim.lr_scheduler.ReduceLROnPlateau


@pytest.mark.parametrize(
    "name",
    [
        "torch.nn.Module",
        "torch.nn.DataParallel",
        "torch.nn.parallel.DistributedDataParallel",
        "torch.nn.functional.relu",
        "torch.nn.Parameter",
        "torch.nn.init.normal_",
        "torch.nn.modules.module.Module",
        "torch.optim.SGD",
        "torch.Tensor",
        "os.system",
        "builtins.eval",
        "subprocess.Popen",
        "ps_service.server.Server",
        "Linear",
        "torch.nn.linear",
        "torch.nn.Linear ",
        "",
        ".",
        "torch.nn..Linear",
        f"{__name__}.Heir",
        f"{__name__}.pytest",
    ],
)
def test_nothing_else_can_be_hosted(listed: AllowList, name: str) -> None:
    with pytest.raises(NotAllowedError, match="is not on this owner's allow-list; it must be decorated with @hosted"):
        listed.hosted(name)


@pytest.mark.parametrize("name", ["torch.optim.Optimizer", "torch.nn.Linear", "torch.optim.lr_scheduler.StepLR", "SGD"])
def test_nothing_else_is_an_optimizer(listed: AllowList, name: str) -> None:
    with pytest.raises(NotAllowedError, match=r"optimizer .* is not on this owner's allow-list"):
        listed.optimizer(name)


@pytest.mark.parametrize("name", ["torch.optim.lr_scheduler.LRScheduler", "torch.optim.SGD", f"{__name__}.Own"])
def test_nothing_else_is_a_scheduler(listed: AllowList, name: str) -> None:
    with pytest.raises(NotAllowedError, match=r"scheduler .* is not on this owner's allow-list"):
        listed.scheduler(name)


def test_a_hosted_class_is_found_by_the_name_of_its_module(listed: AllowList) -> None:
    assert listed.hosted(f"{__name__}.Own") is Own
    with pytest.raises(NotAllowedError):
        AllowList().hosted(f"{__name__}.Own")


def test_a_hosted_optimizer_or_scheduler_is_one(listed: AllowList) -> None:
    assert listed.optimizer(f"{__name__}.OwnOptimizer") is OwnOptimizer
    assert listed.scheduler(f"{__name__}.OwnScheduler") is OwnScheduler
    for name in ("OwnOptimizer", "OwnScheduler"):
        with pytest.raises(NotAllowedError):
            listed.hosted(f"{__name__}.{name}")


def test_imported_classes_of_a_module_are_listed_too() -> None:
    front = ModuleType("front")
    front.Counter = hosted_models.Counter
    allowed = AllowList([front])
    assert allowed.hosted("front.Counter") is hosted_models.Counter
    assert allowed.hosted("tests.hosted_models.Counter") is hosted_models.Counter
    with pytest.raises(NotAllowedError):
        allowed.hosted("tests.hosted_models.Affine")


def test_the_mark_is_not_inherited() -> None:
    module = ModuleType("heirs")
    module.Heir = Heir
    with pytest.raises(ValueError, match="module heirs has nothing that is decorated with @hosted or @remote"):
        AllowList([module])


def test_modules_are_imported_by_name() -> None:
    allowed = AllowList.importing(["tests.hosted_models", __name__])
    assert allowed.hosted("tests.hosted_models.Affine") is hosted_models.Affine
    assert allowed.hosted(f"{__name__}.Own") is Own


def test_a_module_that_is_not_there_is_an_import_error() -> None:
    with pytest.raises(ImportError) as error:
        AllowList.importing(["no_such_module"])
    assert "--import no_such_module: No module named 'no_such_module'; it is in none of these folders" in str(
        error.value
    )
    assert sys.path[-1] in str(error.value)


@pytest.mark.parametrize("line", ["import no_such_module", "from os import no_such_name"])
def test_a_module_that_cannot_be_imported_is_named(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imports_nothing_there.py").write_text(line)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=r"--import imports_nothing_there: .*no_such_") as error:
        AllowList.importing(["imports_nothing_there"])
    assert "none of these folders" not in str(error.value)


def test_a_module_without_hosted_classes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"module torch\.random has nothing that is decorated with @hosted or @remote"):
        AllowList.importing([torch.random.__name__])


def test_looking_a_name_up_imports_nothing() -> None:
    allowed = AllowList()
    before = set(sys.modules)
    for name in ("antigravity.Something", "this.Something", "tests.hosted_models.NotThere"):
        with pytest.raises(NotAllowedError):
            allowed.hosted(name)
    assert set(sys.modules) == before


def test_a_module_with_nothing_but_a_class_that_lacks_its_mark_names_that() -> None:
    module = ModuleType("lacking")
    module.NotHosted = half_marked.NotHosted
    with pytest.raises(ValueError, match=r"@hosted or @remote; class NotHosted has methods .* @hosted is missing on"):
        AllowList([module])
