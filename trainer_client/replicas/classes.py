"""Makes the local module of a replica. Classes are those that this program has named, never names from a message."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from ps_wire.codec.trees import tensors_in
from ps_wire.errors import InvalidArgumentError

Factory = type[nn.Module] | Callable[[], nn.Module]
"""A class of modules, or a function without arguments that makes one."""


class MadeBy(NamedTuple):
    """What this client asked an owner to make an object of: a class, or the name that the program wrote."""

    cls: type | str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @classmethod
    def of(cls, made: type | str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> MadeBy | None:
        """The same, if the arguments are plain values, or tables. Tensors are not kept."""
        if any(True for _ in tensors_in((args, dict(kwargs)))):
            return None
        return cls(made, tuple(map(_local, args)), {name: _local(each) for name, each in kwargs.items()})


def _local(value: Any) -> Any:
    """What a module of this process gets in the place of an argument: look-ups in a table wait, as on an owner."""
    behind = getattr(value, "__ps_local__", None)
    return value if behind is None else behind()


def local_module(made_by: MadeBy | None, factory: Factory | None, class_name: str) -> nn.Module:
    """A new module of this process, of `factory` or else as this client has made it, if it did not only attach. Torch's
    default generator stays as it was. Raises `InvalidArgumentError` if that is not known, or makes no module."""
    if factory is None:
        if made_by is None:
            raise InvalidArgumentError(
                f"this client does not know how the {class_name} was made: it attached to it, or its constructor got "
                "tensors or handles. Pass a function that makes the module: net.replica(lambda: Net(10))"
            )
        factory = made_by.cls if isinstance(made_by.cls, type) else _imported(made_by.cls)
    if not callable(factory):
        raise InvalidArgumentError(f"{factory!r} is neither a class nor a function that makes a module")
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
        if isinstance(factory, type) and made_by is not None:
            module: Any = factory(*made_by.args, **made_by.kwargs)
        else:
            module = factory()
    if not isinstance(module, nn.Module):
        raise InvalidArgumentError(f"a replica is made from a module, not from a {type(module).__name__}")
    return module


def _imported(name: str) -> Any:
    """The class of a name that the program itself has written."""
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part, None)
        if isinstance(found, type):
            return found
    raise InvalidArgumentError(f"there is no class {name!r} in this process: pass it, as in net.replica(Net)")
