"""Notices that a program has replaced the parameters of a replica, or has changed their values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ps_wire.errors import InvalidArgumentError


class _Link(NamedTuple):
    """An entry of a module: a submodule or a parameter.

    Attributes:
        entries: The submodules or parameters of the module.
        name: The name in it.
        value: What was there.
        path: Dotted name from the outermost module.
    """

    entries: dict[str, Any]
    name: str
    value: object
    path: str


class Structure:
    """Where the parameters of a module are.

    Code that gives a module new parameters, such as a parametrization or an assignment, would otherwise go unnoticed:
    the new ones get the gradients, and the old ones are pushed and pulled.

    Args:
        module: The module.
        parameters: The parameters that are pushed and pulled.
    """

    def __init__(self, module: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
        known = {id(each) for each in parameters}
        links: dict[tuple[int, str], _Link] = {}
        for path, found in module.named_parameters(remove_duplicate=False):
            if id(found) not in known:
                continue
            holder, (*parents, leaf) = module, path.split(".")
            for parent in parents:
                child = holder._modules[parent]
                assert child is not None
                links.setdefault((id(holder), parent), _Link(holder._modules, parent, child, path))
                holder = child
            links[id(holder), leaf] = _Link(holder._parameters, leaf, found, path)
        self._links = list(links.values())

    def check(self) -> None:
        """Checks that the parameters are where they were.

        Raises:
            InvalidArgumentError: One of them is not.
        """
        for entries, name, value, path in self._links:
            if entries.get(name) is not value:
                raise InvalidArgumentError(
                    f"{path!r} of this replica is not the parameter any more that it was when the replica was made: it "
                    "was replaced, or parametrized. Make a replica of the module as it is now: net.replica(function)"
                )


class Values:
    """The values of parameters, as far as torch tells whether they have changed: by version, memory and dtype.

    Args:
        parameters: The parameters.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._known = [_state(each) for each in parameters]

    def note(self, positions: Iterable[int]) -> None:
        """From now on, the present values of these parameters are the known ones."""
        for position in positions:
            self._known[position] = _state(self._parameters[position])

    def changed(self) -> list[int]:
        """Positions of parameters that have been written to, moved or converted since `note`."""
        return [i for i, each in enumerate(self._parameters) if _state(each) != self._known[i]]


def _state(parameter: torch.Tensor) -> tuple[int, int, torch.dtype]:
    return parameter._version, parameter.data_ptr(), parameter.dtype
