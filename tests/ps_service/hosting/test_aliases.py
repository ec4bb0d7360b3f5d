"""Tests that a module with other tensors in the memory of its parameters is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ps_service.hosting.aliases import Extent, check_aliases, is_within
from ps_wire.errors import InvalidArgumentError


class Module(nn.Module):
    """A matrix and a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.ones(4, 3))
        self.vector = nn.Parameter(torch.ones(3))


def test_a_module_with_parameters_of_their_own_is_taken() -> None:
    module = Module()
    module.copy = module.matrix.detach().clone()
    module.register_buffer("mean", torch.zeros(3))
    check_aliases("Module", module)


def test_one_parameter_under_two_names_is_taken() -> None:
    outer = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    outer[1].weight = outer[0].weight
    check_aliases("Sequential", outer)


def test_two_parameters_in_one_memory_are_refused() -> None:
    module = Module()
    module.vector = nn.Parameter(module.matrix.data[1])
    with pytest.raises(InvalidArgumentError, match="parameters 'matrix' and 'vector' of Module lie in the same memory"):
        check_aliases("Module", module)


@pytest.mark.parametrize("kept", ["tensor", "list", "array", "buffer"])
def test_the_memory_of_a_parameter_under_another_name_is_refused(kept: str) -> None:
    module = Module()
    row = module.matrix.detach()[2]
    if kept == "buffer":
        module.register_buffer("kept", row)
    else:
        module.kept = {"tensor": row, "list": [{"row": row}], "array": row.numpy()}[kept]
    with pytest.raises(InvalidArgumentError, match="lies in the memory of parameter 'matrix'"):
        check_aliases("Module", module)


def test_an_alias_in_a_submodule_is_named() -> None:
    outer = nn.Sequential(Module())
    outer[0].kept = outer[0].vector.data
    with pytest.raises(InvalidArgumentError, match=r"attribute '0\.kept'.*parameter '0\.vector'"):
        check_aliases("Sequential", outer)


def test_columns_of_one_matrix_do_not_share_memory() -> None:
    memory = torch.ones(4, 2)
    module = nn.Module()
    module.left, module.right = nn.Parameter(memory[:, 0]), nn.Parameter(memory[:, 1])
    check_aliases("Module", module)


def test_a_view_lies_within_its_base() -> None:
    matrix = torch.ones(4, 3)
    assert is_within(matrix[1:2].T, [torch.ones(1), matrix])
    assert not is_within(matrix.clone(), [matrix])
    assert not is_within(matrix[:, 0], [matrix[:, 1]])
    assert not is_within(matrix[:0], [matrix])
    assert not is_within(matrix, [])


def test_extents_meet_where_they_have_an_address_in_common() -> None:
    assert Extent(0, 8).meets(Extent(7, 9))
    assert not Extent(0, 8).meets(Extent(8, 9))
    assert not Extent(8, 9).meets(Extent(0, 8))
