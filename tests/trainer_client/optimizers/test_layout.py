"""Tests that the parts of an optimizer have the groups and the state of one torch optimizer."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import Parameter

from ps_wire.connections.in_process import MemoryConnection
from ps_wire.errors import InvalidArgumentError
from ps_wire.refs import Ref
from trainer_client.handles.parameters import RemoteParameter
from trainer_client.optimizers.layout import Layout, split_groups
from trainer_client.session.session import Session
from trainer_client.session.settings import Settings
from trainer_client.transport.in_process import MemoryConnector


async def _no_server(_: MemoryConnection) -> None: ...


def session(owner: str) -> Session:
    """A session that is never opened."""
    made = Session(MemoryConnector(_no_server), b"t" * 16, Settings())
    made.owner = owner
    return made


def remote(of: Session, name: str) -> RemoteParameter:
    return RemoteParameter(of, Ref(of.owner, "0" * 32, name), None, torch.Size([2]), torch.float32)


# Splitting


async def test_parameters_go_to_where_they_are() -> None:
    ps0, ps1 = session("ps0"), session("ps1")
    a, b, c = remote(ps0, "a"), remote(ps1, "b"), remote(ps0, "c")
    here = Parameter(torch.zeros(2))
    layout, remotes, local = split_groups(iter([a, here, b, c]))
    assert remotes == {ps0: [([a, c], {})], ps1: [([b], {})]}
    assert [group["params"] for group in local] == [[here]]
    assert layout.groups == [[("ps0", 0), ("", 0), ("ps1", 0), ("ps0", 1)]]
    assert layout.places(None) == layout.places(0) == [("ps0", 0), ("ps1", 0), ("", 0)]


async def test_groups_keep_their_options_and_are_numbered_in_each_place() -> None:
    ps0, ps1 = session("ps0"), session("ps1")
    a, b, c = remote(ps0, "a"), remote(ps1, "b"), remote(ps1, "c")
    here = Parameter(torch.zeros(2))
    groups = [{"params": [a, b], "lr": 1.0}, {"params": c, "momentum": 0.5}, {"params": here}]
    layout, remotes, local = split_groups(groups)
    assert remotes == {ps0: [([a], {"lr": 1.0})], ps1: [([b], {"lr": 1.0}), ([c], {"momentum": 0.5})]}
    assert local == [{"params": [here]}]
    assert [layout.places(number) for number in range(3)] == [[("ps0", 0), ("ps1", 0)], [("ps1", 1)], [("", 0)]]
    assert layout.places(None) == [("ps0", 0), ("ps1", 0), ("ps1", 1), ("", 0)]
    assert groups[0]["params"] == [a, b], "what the user gave stays as it was"


async def test_sessions_are_compared_by_identity() -> None:
    one, other = session("ps0"), session("ps0")
    _, remotes, _ = split_groups([remote(one, "a"), remote(other, "b")])
    assert len(remotes) == 2


@pytest.mark.parametrize("group", [3, -1])
async def test_a_group_that_is_not_there_is_refused(group: int) -> None:
    layout, _, _ = split_groups([Parameter(torch.zeros(1))])
    with pytest.raises(InvalidArgumentError, match=f"no parameter group {group}; there are 1"):
        layout.places(group)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ([], "got an empty list"),
        (["weight"], "not a str; a module's handle has parameters"),
        ([Parameter(torch.zeros(1)), None], "not a NoneType"),
        ([{"params": []}], "a parameter group needs parameters"),
        ([{"params": [Parameter(torch.zeros(1))]}, {"params": []}], "a parameter group needs parameters"),
        ([{"lr": 0.1}], "a parameter group is a dict with 'params'"),
        ([{"params": [Parameter(torch.zeros(1))]}, Parameter(torch.zeros(1))], "a parameter group is a dict"),
        ([{"params": [1.0]}], "not a float"),
    ],
    ids=str,
)
def test_members_that_are_no_parameters_are_refused(parameters: list[Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        split_groups(parameters)


# Their state, as one


PARTS = ["", "ps0", "ps1"]


@st.composite
def layouts(draw: st.DrawFn) -> list[list[str]]:
    """For each group, the parts of its parameters."""
    return draw(st.lists(st.lists(st.sampled_from(PARTS), min_size=1, max_size=4), min_size=1, max_size=4))


@given(groups=layouts(), cls=st.sampled_from([torch.optim.Adam, torch.optim.SGD]), skipped=st.integers(0, 15))
def test_states_are_those_of_one_torch_optimizer(groups: list[list[str]], cls: Any, skipped: int) -> None:
    options = {"lr": 0.1, **({"momentum": 0.9} if cls is torch.optim.SGD else {})}
    layout, whole, parts = Layout(), [], {part: [] for part in PARTS}
    for number, members in enumerate(groups):
        parameters = [Parameter(torch.full((2,), float(position))) for position in range(len(members))]
        own: dict[str, list[Parameter]] = {}
        for part, parameter in zip(members, parameters, strict=True):
            own.setdefault(part, []).append(parameter)
        layout.add_group(members, {part: len(parts[part]) for part in own})
        for part, found in own.items():
            parts[part].append({"params": found, "weight_decay": number / 10})
        whole.append({"params": parameters, "weight_decay": number / 10})
    together = cls(whole, **options)
    apart = {part: cls(described, **options) for part, described in parts.items() if described}
    everything = [parameter for group in whole for parameter in group["params"]]
    for position, parameter in enumerate(everything):
        if position != skipped:
            parameter.grad = torch.tensor([1.0, float(position)])
    for optimizer in (together, *apart.values()):
        before = [parameter.detach().clone() for parameter in everything]
        optimizer.step()
        for parameter, value in zip(everything, before, strict=True):
            parameter.data = value  # the same step for the next one
    expected = together.state_dict()
    merge = layout.merge({part: optimizer.state_dict() for part, optimizer in apart.items()})
    assert merge["param_groups"] == expected["param_groups"]
    assert list(merge["state"]) == list(expected["state"])
    _assert_same(merge["state"], expected["state"])
    split = layout.split(copy.deepcopy(expected))
    assert split.keys() == apart.keys()
    for part, optimizer in apart.items():
        assert split[part]["param_groups"] == optimizer.state_dict()["param_groups"]
        _assert_same(split[part]["state"], optimizer.state_dict()["state"])


def _assert_same(one: dict[int, Any], other: dict[int, Any]) -> None:
    assert one.keys() == other.keys()
    for index, entries in one.items():
        for key, value in entries.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(other[index][key]))


@pytest.mark.parametrize(
    "whole",
    [
        {},
        {"state": {}},
        {"state": {}, "param_groups": []},
        {"state": {}, "param_groups": [{"params": [0]}]},
        {"state": {}, "param_groups": [{"params": [0, 1]}, {"params": []}]},
        {"state": {7: {}}, "param_groups": [{"params": [0, 1]}]},
        {"state": [], "param_groups": [{"params": [0, 1]}]},
        {"state": {}, "param_groups": [{}]},
        {"state": {}, "param_groups": 1},
        {"state": {}, "param_groups": [1]},
    ],
    ids=str,
)
def test_a_state_that_does_not_fit_is_refused(whole: dict[str, Any]) -> None:
    layout, _, _ = split_groups([Parameter(torch.zeros(1)), Parameter(torch.zeros(1))])
    with pytest.raises(InvalidArgumentError):
        layout.split(whole)
