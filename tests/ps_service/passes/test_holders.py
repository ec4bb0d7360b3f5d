"""Tests that results which other code still refers to are copied, and others are not."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ps_service.passes.holders import LARGE, Holders

KEPT: list[Any] = []


def large() -> torch.Tensor:
    return torch.zeros(LARGE, dtype=torch.uint8)


TABLE = torch.zeros(2, LARGE)
NUMBERS = np.zeros(LARGE, np.uint8)


def keeps(tensor: torch.Tensor) -> torch.Tensor:
    KEPT.append(tensor)
    return tensor


def keeps_an_array(tensor: torch.Tensor) -> torch.Tensor:
    KEPT.append(tensor.numpy())
    return tensor


def keeps_a_view(tensor: torch.Tensor) -> torch.Tensor:
    KEPT.append(tensor[1:])
    return tensor


def keeps_a_weak_reference(tensor: torch.Tensor) -> torch.Tensor:
    KEPT.append(weakref.ref(tensor))
    return tensor


def keeps_a_new_one(_: torch.Tensor) -> torch.Tensor:
    new = large()
    KEPT.append(new)
    return new


def keeps_it_in_a_closure(tensor: torch.Tensor) -> torch.Tensor:
    KEPT.append(lambda: tensor)
    return tensor


def tracked(_: torch.Tensor) -> torch.Tensor:
    """With a history, which might hold it too."""
    return torch.zeros(LARGE, requires_grad=True).exp()


SHARED: list[Callable[[torch.Tensor], Any]] = [
    keeps,
    keeps_an_array,
    keeps_a_view,
    keeps_a_weak_reference,
    keeps_a_new_one,
    keeps_it_in_a_closure,
    tracked,
    lambda _: TABLE[0],
    lambda _: TABLE,
    lambda _: torch.from_numpy(NUMBERS),
    lambda _: large().share_memory_(),
    lambda tensor: [tensor],
]


def ask(method: Callable[[torch.Tensor], Any], tensor: torch.Tensor) -> tuple[Any, list[int]]:
    """What becomes of the result, and where it was before."""
    places: list[int] = []

    def hosted(argument: torch.Tensor) -> Any:
        result = method(argument)
        places.append((result[0] if isinstance(result, list) else result).data_ptr())
        return result

    arguments = (tensor,)
    return Holders(arguments).sent(hosted(*arguments)), places


@pytest.mark.parametrize("method", [lambda tensor: tensor, lambda _: large(), lambda tensor: tensor + 1])
def test_a_result_without_other_references_is_not_copied(method: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for _ in range(3):
        result, places = ask(method, large())
        assert result.data_ptr() == places[0]


@pytest.mark.parametrize("method", SHARED)
def test_a_result_with_other_references_is_copied(method: Callable[[torch.Tensor], Any]) -> None:
    result, places = ask(method, large())
    result = result[0] if isinstance(result, list) else result
    assert result.data_ptr() != places[0]
    assert result.grad_fn is None
    KEPT.clear()


def test_small_results_are_always_copied() -> None:
    result, places = ask(lambda tensor: tensor, torch.zeros(3))
    assert result.data_ptr() != places[0]


def test_an_argument_with_earlier_references_is_still_an_argument() -> None:
    tensor = large()
    result, places = ask(lambda argument: argument, tensor)
    # The caller of the method, that is the message it came with, holds it all the time.
    assert result.data_ptr() == places[0] == tensor.data_ptr()


def test_a_member_of_a_container_that_was_kept_is_copied() -> None:
    weights = {"w": large()}
    # The object keeps the dict, not the tensor: there is no new reference to the tensor itself.
    result = Holders([]).sent(weights["w"])
    assert result.data_ptr() != weights["w"].data_ptr()
