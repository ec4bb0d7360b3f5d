"""Seeding of one thread: random numbers that depend on a seed only, not on what other threads draw meanwhile.

Torch has one default generator per device for the whole process. In a seeded block, every random operation of the
thread that names no generator gets the block's generator. So it draws the numbers that it would draw in a process of
its own after `torch.manual_seed(seed)`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ps_wire.numerics import operators


class _Blocks(threading.local):
    """The seeded blocks that a thread is in, the innermost one last."""

    def __init__(self) -> None:
        self.entered: list[Seeded] = []


_blocks = _Blocks()


class Seeded(TorchDispatchMode):
    """A block whose random numbers depend on a `seed` only, as for `torch.manual_seed`. It affects only its thread."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        operators.resolve()
        self.seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    @staticmethod
    def current() -> Seeded | None:
        """The block that this thread is in; None if it is in none."""
        return _blocks.entered[-1] if _blocks.entered else None

    def __enter__(self) -> Seeded:
        super().__enter__()  # type: ignore[no-untyped-call]
        _blocks.entered.append(self)
        return self

    def __exit__(self, *error: Any) -> None:
        _blocks.entered.pop()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = {} if kwargs is None else kwargs
        draw = way_to_draw(func)
        return func(*args, **kwargs) if draw is None else draw(self, args, kwargs)

    def generator(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Generator | None:
        """The block's generator for the device of an operation; None on the meta device."""
        device = next((each.device for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)), None)
        device = torch.device(kwargs.get("device") or "cpu") if device is None else device
        if device.type == "meta":
            return None
        known = self._generators.get(device)
        if known is None:
            known = self._generators[device] = torch.Generator(device).manual_seed(self.seed)
        return known


Draw = Callable[[Seeded, tuple[Any, ...], dict[str, Any]], Any]


@cache
def way_to_draw(func: Any) -> Draw | None:
    """How to run a torch operation with a generator; None if it draws nothing that can be seeded."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return None
    if func is torch.ops.aten.native_dropout.default:
        return lambda seeded, args, kwargs: _dropout(seeded, *args, **kwargs)
    place = _place(func)
    if place is not None:
        return _with_generator(func, place)
    overloads = [getattr(func.overloadpacket, name) for name in func.overloadpacket.overloads()]
    other = next((each for each in overloads if _place(each) is not None and _others(each) == _others(func)), None)
    if other is not None:
        return lambda seeded, args, kwargs: other(*args, **kwargs, generator=seeded.generator(args, kwargs))
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        return lambda seeded, args, kwargs: _decomposed(seeded, func, args, kwargs)
    return None


def _place(func: Any) -> int | None:
    """The position of an operation's generator among its arguments."""
    arguments = func._schema.arguments
    return next((n for n, each in enumerate(arguments) if "Generator" in str(each.type)), None)


def _others(func: Any) -> list[tuple[str, str]]:
    """Names and types of an operation's arguments but for its generator."""
    arguments = ((each.name, str(each.type)) for each in func._schema.arguments)
    return [(name, kind) for name, kind in arguments if "Generator" not in kind]


def _with_generator(func: Any, place: int) -> Draw:
    name = func._schema.arguments[place].name

    def draw(seeded: Seeded, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs.get(name) is not None or (len(args) > place and args[place] is not None):
            return func(*args, **kwargs)  # the caller passed its own generator
        generator = seeded.generator(args, kwargs)
        if len(args) > place:
            return func(*args[:place], generator, *args[place + 1 :], **kwargs)
        return func(*args, **{**kwargs, name: generator})

    return draw


def _decomposed(seeded: Seeded, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with seeded:
        return func.decompose(*args, **kwargs)


def _dropout(seeded: Seeded, input: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Dropout decomposed on a CPU, where torch's kernel takes no generator; torch's fused kernel on a GPU."""
    if not input.numel() or train is False:
        return torch.ops.aten.native_dropout(input, p, train)  # type: ignore[no-any-return]
    generator, kept = seeded.generator((input,), {}), 1.0 - p
    if input.is_cuda:
        output, mask = torch.ops.aten._fused_dropout(input, kept, generator)
        return output, mask.bool()
    mask = torch.empty_like(input, dtype=torch.bool).bernoulli_(kept, generator=generator)
    return input.mul(mask).mul_(1.0 / kept if kept else 0.0), mask
