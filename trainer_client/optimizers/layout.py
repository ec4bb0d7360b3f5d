"""Maps the parameter groups of a distributed optimizer to the groups of its parts, and their state dicts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ps_wire.errors import InvalidArgumentError
from trainer_client.handles.parameters import as_list
from trainer_client.handles.references import RRef
from trainer_client.replicas.tensors import is_copy

if TYPE_CHECKING:
    from trainer_client.session.session import Session

    RemoteGroups = dict[Session, list[tuple[list[RRef], dict[str, Any]]]]


class Layout:
    """Maps the groups of the user to those of each part, and converts between their state dicts. `groups` has the part
    of each parameter of each group, and its index there; `own_group` for each group, by part, its index there;
    `digests` those of the parameters on owners, by group."""

    LOCAL: ClassVar[str] = ""
    """Name of the part in this process."""

    def __init__(self) -> None:
        self.groups: list[list[tuple[str, int]]] = []
        self.own_group: list[dict[str, int]] = []
        self.digests: list[list[int]] = []
        # The next index in each part.
        self._indices: defaultdict[str, Iterator[int]] = defaultdict(count)

    def add_group(self, parts: Sequence[str], numbers: dict[str, int]) -> None:
        """Adds a group; `parts` names the part of each of its parameters."""
        self.groups.append([(part, next(self._indices[part])) for part in parts])
        self.own_group.append(numbers)

    def rename(self, names: Mapping[str, str]) -> None:
        """Parts have other names now."""
        self.groups = [[(names.get(part, part), place) for part, place in group] for group in self.groups]
        self.own_group = [{names.get(part, part): at for part, at in own.items()} for own in self.own_group]
        self._indices = defaultdict(count, {names.get(part, part): at for part, at in self._indices.items()})

    def places(self, group: int | None) -> list[tuple[str, int]]:
        """The parts, and the indices of their groups, that belong to one group of the user or to all."""
        if group is None:
            return [place for numbers in self.own_group for place in numbers.items()]
        if not isinstance(group, int) or not 0 <= group < len(self.own_group):
            raise InvalidArgumentError(f"there is no parameter group {group!r}; there are {len(self.own_group)}")
        return list(self.own_group[group].items())

    def merge(self, parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Merges the state dicts of the parts into one."""
        state: dict[int, Any] = {}
        param_groups = []
        index = 0
        for places, numbers in zip(self.groups, self.own_group, strict=True):
            part, number = next(iter(numbers.items()))
            param_groups.append({**parts[part]["param_groups"][number], "params": []})
            for name, place in places:
                if place in parts[name]["state"]:
                    state[index] = parts[name]["state"][place]
                param_groups[-1]["params"].append(index)
                index += 1
        return {"state": state, "param_groups": param_groups}

    def split(self, whole: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Splits a state dict into those of the parts. Raises `InvalidArgumentError` if it does not fit."""
        sizes = _sizes_of_groups(whole)
        if sizes != [len(group) for group in self.groups]:
            raise InvalidArgumentError("the state has other parameter groups than this optimizer")
        if not whole["state"].keys() <= {index for group in whole["param_groups"] for index in group["params"]}:
            raise InvalidArgumentError("the state has parameters that are in none of its groups")
        parts: dict[str, dict[str, Any]] = {part: {"state": {}, "param_groups": []} for part in self._indices}
        for places, numbers, group in zip(self.groups, self.own_group, whole["param_groups"], strict=True):
            for part in numbers:
                own = [place for name, place in places if name == part]
                parts[part]["param_groups"].append({**group, "params": own})
            for (part, place), index in zip(places, group["params"], strict=True):
                if index in whole["state"]:
                    parts[part]["state"][place] = whole["state"][index]
        return parts


def _sizes_of_groups(whole: Mapping[str, Any]) -> list[int]:
    try:
        if isinstance(whole, Mapping) and isinstance(whole["state"], Mapping):
            return [len(group["params"]) for group in whole["param_groups"]]
    except (TypeError, KeyError):
        pass  # the value is no list of groups; the error below says so
    raise InvalidArgumentError("an optimizer's state is a dict with 'state' and 'param_groups', as torch makes it")


def split_groups(parameters: Iterable[Any]) -> tuple[Layout, RemoteGroups, list[dict[str, Any]]]:
    """Splits parameters, or groups of them, by owner: the layout, the groups of each session, and local ones."""
    listed = list(parameters)
    if not listed:
        raise InvalidArgumentError("an optimizer needs parameters, and got an empty list")
    groups = listed if isinstance(listed[0], Mapping) else [{"params": listed}]
    layout = Layout()
    remote: RemoteGroups = {}
    local: list[dict[str, Any]] = []
    for group in groups:
        if not isinstance(group, Mapping) or "params" not in group:
            raise InvalidArgumentError(
                "a parameter group is a dict with 'params'; give all parameters in such groups, or none"
            )
        options = {key: value for key, value in group.items() if key != "params"}
        members = as_list(group["params"])
        if not members:
            raise InvalidArgumentError("a parameter group needs parameters, and got an empty list")
        _add_group(layout, remote, local, members, options)
    if len({session.trainer for session in remote}) > 1:
        raise InvalidArgumentError(
            "the parameters belong to different clients; connect to all of their owners with one "
            "connect(address, address, ...)"
        )
    return layout, remote, local


def _add_group(
    layout: Layout, remote: RemoteGroups, local: list[dict[str, Any]], members: list[Any], options: dict[str, Any]
) -> None:
    parts: list[str] = []
    numbers: dict[str, int] = {}
    here: list[torch.Tensor] = []
    there: dict[Session, list[RRef]] = {}
    for member in members:
        if _is_parameter(member):
            there.setdefault(member.session, []).append(member)
            parts.append(member.owner)
        elif isinstance(member, torch.Tensor):
            if is_copy(member):
                raise InvalidArgumentError(
                    "these are parameters of a replica, whose steps are made on the owner: make the optimizer of the "
                    "module that it replicates, ps.optimizer(..., net.parameters()), and call replica.push(opt) after "
                    "loss.backward()"
                )
            here.append(member)
            parts.append(Layout.LOCAL)
        else:
            raise InvalidArgumentError(
                f"an optimizer takes handles of parameters and local tensors, not a {type(member).__name__}; "
                "a module's handle has parameters()"
            )
    for session, found in there.items():
        own = remote.setdefault(session, [])
        numbers[session.owner] = len(own)
        own.append((found, options))
    if there:
        layout.digests.append([member.ref.digest() for member in members if _is_parameter(member)])
    if here:
        numbers[Layout.LOCAL] = len(local)
        local.append({"params": here, **options})
    layout.add_group(parts, numbers)


def _is_parameter(member: Any) -> bool:
    return isinstance(member, RRef) and member.may_be_parameter
