"""The names of classes and functions in messages; code is never sent."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, WrapperDescriptorType
from typing import Any, Final

import torch
from torch.nn import functional

from ps_wire.errors import InvalidArgumentError

NAMED: Final = (type, FunctionType, BuiltinFunctionType, MethodType, MethodDescriptorType, WrapperDescriptorType)
"""Types of values that travel by name."""

_TORCHS: Final[tuple[tuple[str, Any], ...]] = (
    ("torch", torch),
    ("torch.nn.functional", functional),
    ("torch.Tensor", torch.Tensor),
)


def name_of(thing: type | Callable[..., Any] | str) -> str:
    """The name of a class or function in messages; an `InvalidArgumentError` if other processes cannot find it by name.
    One of the running program is named after its module or file, by which others import it, and not after `__main__`.
    """
    if isinstance(thing, str):
        return thing
    if isinstance(thing, MethodType):
        if not isinstance(thing.__self__, type):
            raise InvalidArgumentError(
                f"{thing.__qualname__} is bound to an object of this process, which stays here; "
                "call it through a handle to the object"
            )
        return f"{name_of(thing.__self__)}.{thing.__name__}"
    if isinstance(thing, torch.nn.Module):
        raise InvalidArgumentError(
            f"give the class and its arguments, not an object: {type(thing).__name__}, … The owner makes the object"
        )
    if not hasattr(thing, "__name__"):
        kind = type(thing).__name__
        raise InvalidArgumentError(f"give a class or a function and its arguments, or a name, not an object of {kind}")
    qualname = getattr(thing, "__qualname__", "")
    module = getattr(thing, "__module__", None)
    if not isinstance(thing, (type, FunctionType)):
        # Functions in C have no useful `__module__`.
        if str(module) == "torch._C._linalg":
            return f"torch.linalg.{thing.__name__.removeprefix('linalg_')}"
        for prefix, namespace in _TORCHS:
            if getattr(namespace, thing.__name__, None) is thing:
                return f"{prefix}.{thing.__name__}"
        module = module or builtins.__name__
    if "<" in qualname:
        raise InvalidArgumentError(
            f"{qualname} cannot be called elsewhere: a lambda, or what is defined inside a function, has no name "
            "there. Define it in a module that the owner imports"
        )
    return f"{module_name(str(module))}.{qualname}"


def full_name(cls: type) -> str:
    """The full name of a class for messages to people, also if other processes cannot find it."""
    return f"{cls.__module__}.{cls.__qualname__}"


def module_name(name: str) -> str:
    """The name by which other processes import a module, which may be the running program."""
    if name not in ("__main__", "__mp_main__"):  # as spawned processes call it
        return name
    import __main__ as main

    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else name
