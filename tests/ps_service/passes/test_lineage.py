"""Tests which results of a call have a history, and whether hosted code has autograd functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ps_service.hosting.objects import HostedObject
from ps_service.hosting.references import RRef
from ps_service.parameters.locks import ParameterLocks
from ps_service.passes.binding import has_own_functions, results_in, runs_own_function
from tests.custom_functions import Doubled
from trainer_client.rpc.rref import RRef as RRefOfMember


def leaf() -> torch.Tensor:
    return torch.ones(1, requires_grad=True)


def are(found: list[torch.Tensor], *expected: torch.Tensor) -> bool:
    return list(map(id, found)) == list(map(id, expected))


# Results


def test_results_are_the_tensors_that_require_grad_in_order() -> None:
    one, two, plain = leaf() * 2, leaf() * 3, torch.ones(1)
    assert are(results_in(one), one)
    assert results_in(plain) == results_in(5) == results_in(None) == []
    assert are(results_in({"a": [plain, two], "b": (one, "text")}), two, one)


def test_results_that_stay_on_the_owner_count_too() -> None:
    one, two = leaf() * 2, leaf() * 3
    assert are(results_in([one, RRef({"kept": two, "plain": torch.ones(1)})]), one, two)


def test_objects_that_were_there_before_are_no_results() -> None:
    hosted = HostedObject("ps0", leaf() * 2, ParameterLocks())
    assert results_in([RRef.to(hosted)]) == []


# Functions of hosted code


def test_functions_of_hosted_code_are_known() -> None:
    assert has_own_functions()


def test_a_function_is_found_anywhere_in_the_graph() -> None:
    doubled: torch.Tensor = Doubled.apply(leaf())  # type: ignore[no-untyped-call]
    assert runs_own_function([doubled])
    assert runs_own_function([leaf() + 1, (doubled * 3).sum()])
    assert not runs_own_function([doubled.detach() * leaf()])
    assert not runs_own_function([leaf() * 2])
    assert not runs_own_function([])


@pytest.mark.parametrize(
    "package", ["torch.nn.functional", "ps_service.hosting.histories", "ps_wire", "trainer_client.rpc"]
)
def test_functions_of_torch_and_of_this_project_do_not_count(package: str) -> None:
    known = type("Known", (Doubled,), {"__module__": package})
    other = type("Other", (Doubled,), {"__module__": f"my_{package}"})
    assert not runs_own_function([known.apply(leaf())])
    assert runs_own_function([other.apply(leaf())])


def of_member(value: Any) -> RRefOfMember:
    return RRefOfMember.of_hosted(RRef(value))


@pytest.mark.parametrize("refer", [RRef, of_member])
def test_tensors_of_results_that_stay_are_found_in_references_of_both_kinds(refer: Callable[[Any], Any]) -> None:
    stays, travels = torch.ones(2, requires_grad=True) * 2, torch.ones(1, requires_grad=True) * 3
    found = results_in([refer({"a": stays, "b": torch.ones(1)}), travels, 5])
    assert len(found) == 2 and found[0] is stays and found[1] is travels
