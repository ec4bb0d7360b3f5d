"""The list of torch's functions: what is on it, what never is, and the page that shows it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ps_service.functions.groups import GROUPS, Group, Level
from ps_service.functions.listing import listed, page
from ps_service.functions.torch_functions import TorchFunctions
from ps_wire.codec.names import name_of
from ps_wire.errors import InvalidArgumentError, NotAllowedError, TooLargeError
from tests.conftest import ROOT
from tests.ps_service.functions.samples import samples


def test_the_page_in_the_docs_is_the_present_one() -> None:
    assert (ROOT / "docs" / "torch-functions.md").read_text() == page()


def test_each_level_includes_the_one_below() -> None:
    off, basic, everything = (listed(level).keys() for level in Level)
    assert not off
    assert basic < everything


def test_every_group_has_a_reason_and_every_name_a_function() -> None:
    found = listed(Level.ALL).values()
    for group in GROUPS:
        members = {each.short for each in found if each.group is group}
        assert group.reason.endswith(".")
        assert members == {*group.names.split(), *group.operators.split()}
        assert group.checks.keys() | {*group.sparse.split()} <= members


WITH_EFFECTS = [
    *("load", "save", "from_file", "frombuffer", "from_numpy", "compile", "manual_seed", "seed", "set_rng_state"),
    *("set_num_threads", "set_default_dtype", "set_grad_enabled", "set_printoptions", "get_rng_state", "initial_seed"),
    *("empty", "empty_like", "empty_strided", "resize_", "set_", "as_strided", "share_memory_", "data_ptr", "numpy"),
    *(
        "sparse_csr_tensor",
        "segment_reduce",
        "batch_norm_update_stats",
        "native_norm",
        "histogramdd",
        "native_batch_norm",
    ),
    *("to_sparse_csr", "storage", "untyped_storage", "register_hook", "backward", "requires_grad_", "apply_", "map_"),
]


def test_functions_with_effects_or_without_checks_are_on_no_level() -> None:
    assert {*WITH_EFFECTS} & {each.rpartition(".")[2] for each in listed(Level.ALL)} == set()


def same(one: Any, other: Any, tolerance: float = 0.0) -> None:
    if isinstance(one, Tensor):
        if one.is_sparse:
            one, other = one.to_dense(), other.to_dense()
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)
    elif isinstance(one, (tuple, list)):
        assert len(one) == len(other)
        for each, its in zip(one, other, strict=True):
            same(each, its, tolerance)
    else:
        assert one == other


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.title)
def test_each_function_gives_the_results_of_torch(group: Group) -> None:
    functions = TorchFunctions(Level.ALL)
    for name, entry in listed(Level.ALL).items():
        offered = functions.get(name) if entry.group is group else None
        if offered is None:
            continue
        for (args, kwargs), (again, by_name) in zip(samples(entry), samples(entry), strict=True):
            # torch.manual_seed keeps a stack trace for each kind of device that has not begun, which takes longer.
            torch.default_generator.manual_seed(0)
            expected = entry.function(*args, **kwargs)
            torch.default_generator.manual_seed(0)
            # While its operations are observed, torch computes singular values together with the vectors.
            tolerance = 1e-5 if group.only == "torch.linalg" else 0.0
            same(offered(*again, **by_name), expected, tolerance)


def test_an_offered_function_has_the_name_of_the_function() -> None:
    functions = TorchFunctions(Level.ALL)
    for name in listed(Level.ALL):
        offered = functions.get(name)
        assert offered is not None and name_of(offered) == name


def test_the_refusal_of_a_function_names_its_level() -> None:
    with pytest.raises(NotAllowedError, match=r"--torch-functions off; docs/torch-functions\.md lists them"):
        TorchFunctions(Level.OFF).method("add")
    basic = TorchFunctions()
    assert basic.get("torch.det") is None and basic.get("torch.add") is not None
    with pytest.raises(NotAllowedError, match="--torch-functions basic"):
        basic.method("share_memory_")


@pytest.mark.parametrize(
    ("name", "args", "error", "text"),
    [
        ("builtins.sum", ([[1], [2]], []), InvalidArgumentError, "lists are not concatenated"),
        ("builtins.round", (5, -(10**9)), InvalidArgumentError, "at most 400 digits"),
        ("builtins.divmod", (2**70, 3), InvalidArgumentError, "64-bit integers"),
        ("builtins.max", ([1] * 70_000,), TooLargeError, "at most 65,536 numbers"),
        ("builtins.sum", (torch.zeros(20_000),), InvalidArgumentError, "would make 20,000 tensors"),
        ("builtins.len", (object(),), InvalidArgumentError, "not a object"),
        ("torch.linalg.norm", (torch.full((3, 3), torch.nan), 2), InvalidArgumentError, "NaN or infinity"),
        ("torch.linalg.matrix_norm", (torch.zeros(1, 5000), "nuc"), TooLargeError, "up to 4096 rows"),
        ("torch.linalg.svd", (torch.zeros(1, 5000),), TooLargeError, "up to 4096 rows"),
    ],
)
def test_what_could_take_long_is_refused(name: str, args: tuple[Any, ...], error: type[Exception], text: str) -> None:
    offered = TorchFunctions(Level.ALL).get(name)
    assert offered is not None
    with pytest.raises(error, match=text):
        offered(*args)


@pytest.mark.parametrize(
    ("name", "kwargs", "error"),
    [
        ("torch.linalg.norm", {"input": torch.full((3, 3), torch.nan), "ord": 2}, InvalidArgumentError),
        ("torch.linalg.norm", {"A": torch.full((3, 3), torch.nan), "ord": 2}, InvalidArgumentError),
        ("torch.linalg.matrix_norm", {"input": torch.zeros(1, 5000), "ord": "nuc"}, TooLargeError),
        ("torch.linalg.matrix_power", {"input": torch.full((3, 3), torch.nan), "n": -1}, InvalidArgumentError),
        ("torch.bincount", {"input": torch.tensor([1 << 40])}, TooLargeError),
        ("torch.histc", {"input": torch.ones(3), "bins": 1 << 40}, InvalidArgumentError),
        ("torch.tensor_split", {"input": torch.ones(3), "indices_or_sections": 1 << 40}, InvalidArgumentError),
    ],
)
def test_an_argument_given_by_its_name_is_checked_like_the_first(
    name: str, kwargs: dict[str, Any], error: type[Exception]
) -> None:
    offered = TorchFunctions(Level.ALL).get(name)
    assert offered is not None
    with pytest.raises(error):
        offered(**kwargs)


def test_only_listed_functions_of_python_can_be_called() -> None:
    functions = TorchFunctions(Level.ALL)
    for name in ("eval", "exec", "open", "__import__", "getattr", "compile", "pow", "map", "print", "range", "input"):
        assert functions.get(f"builtins.{name}") is None
    assert {name for name in listed(Level.ALL) if name.startswith("builtins.")} == {
        f"builtins.{name}" for name in ("abs", "all", "any", "divmod", "len", "max", "min", "round", "sorted", "sum")
    }
    with pytest.raises(InvalidArgumentError, match="not a builtin_function_or_method"):
        functions.get("builtins.sorted")([3, 1], key=abs)  # type: ignore[misc]


def test_arguments_that_fit_no_schema_are_worded_as_in_torch() -> None:
    offered = TorchFunctions().get("torch.add")
    assert offered is not None
    for args in ((), (torch.ones(2), "text")):
        with pytest.raises(TypeError, match="torch operator invoked from Python failed to match any schema: add"):
            offered(*args)


def test_repeated_elements_count_and_possible_indices_are_not_written() -> None:
    functions = TorchFunctions()
    with pytest.raises(TooLargeError, match="would need 4,294,967,296 bytes"):
        functions.method("expand")(torch.ones(1), 2**30)
    wide = functions.method("expand")(torch.ones(1), 2**20)
    with pytest.raises(TooLargeError, match=r"tolist\(\) would make 1,048,576 Python numbers"):
        functions.method("tolist")(wide)
    numbers = torch.arange(3)
    with pytest.raises(InvalidArgumentError, match="writes to floating-point tensors only"):
        functions.method("add_")(numbers, 10**9)
    assert numbers.tolist() == [0, 1, 2]
