"""Calls every listed function, and layers of torch, with hostile arguments. A program of its own: it may die of it.

    python -m tests.ps_service.functions.hostile SEED EXAMPLES NOTES [NAME ...]

NOTES is a file with the name of the running case, in case the process crashes; other findings go to the
output, a line each.
"""

from __future__ import annotations

import os
import random
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ps_service.functions.groups import Level
from ps_service.functions.layers import LayerCheck
from ps_service.functions.listing import listed
from ps_service.functions.torch_functions import TorchFunctions
from ps_wire.limits import MIB, Limits
from tests.ps_service.functions.layer_samples import LAYERS
from tests.ps_service.functions.samples import Call, samples

LIMITS = Limits(max_result_bytes=8 * MIB, max_object_bytes=8 * MIB)
MEMORY = 3 << 30
"""Address space of this process beyond what it begins with: what asks for more has not been bounded."""
SECONDS = 5.0
"""No call may take longer."""

INTEGERS = [-1, 0, 1, 2, 3, 5, 64, -2, 10**5, 10**9, 10**12, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, -(2**63), 2**70]
FLOATS = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, -1.0, 1e308, 1e-45, 1e9, 0.5]
TEXTS = ["", "none", "mean", "sum", "meta", "cuda", "same", "reflect", "trunc", "floor", "bilinear", "ij", "a" * 1000]
DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16),
    *(torch.float32, torch.float64, torch.complex64, torch.complex128),
]
ODD_DTYPES = [torch.uint16, torch.uint64, torch.float8_e4m3fn]


class Mutator:
    """Makes hostile arguments of good ones.

    Args:
        seed: Of its choices.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def call(self, call: Call) -> Call:
        """The call with one or more of its arguments spoiled."""
        args, kwargs = list(call[0]), dict(call[1])
        if self.random.random() < 0.3:
            # All tensors alike: otherwise torch complains of that before it comes to anything else.
            change = self._change()
            args = [change(each) if isinstance(each, Tensor) else each for each in args]
            kwargs = {name: change(each) if isinstance(each, Tensor) else each for name, each in kwargs.items()}
        for _ in range(self.random.choice([1, 1, 2, 3])):
            place = self.random.randrange(len(args) + len(kwargs) or 1)
            if place < len(args):
                args[place] = self.value(args[place])
            elif kwargs:
                name = list(kwargs)[place - len(args)]
                kwargs[name] = self.value(kwargs[name])
        if self.random.random() < 0.1 and args:
            # One object as two arguments, as members may send a tensor.
            args[self.random.randrange(len(args))] = self.random.choice(args)
        if self.random.random() < 0.1:
            args.append(self.random.choice([self.anything(), *args]))
        if self.random.random() < 0.05 and args:
            args.pop()
        return tuple(args), kwargs

    def value(self, value: Any) -> Any:
        """Something in the place of a value, mostly of its kind."""
        if self.random.random() < 0.1:
            return self.anything()
        match value:
            case Tensor():
                return self._change()(value)
            case bool() | None:
                return self.anything()
            case int():
                return self.random.choice(INTEGERS)
            case float():
                return self.random.choice(FLOATS)
            case str():
                return self.random.choice(TEXTS)
            case list() | tuple() if value:
                items = list(value)
                if self.random.random() < 0.2:
                    items = items * self.random.choice([0, 2, 40])
                elif self.random.random() < 0.3:
                    items = [self.value(each) for each in items]
                else:
                    place = self.random.randrange(len(items))
                    items[place] = self.value(items[place])
                return type(value)(items)
            case _:
                return self.anything()

    def anything(self) -> Any:
        """A value of any kind."""
        pick = self.random.choice
        return pick(
            [
                *(None, True, False, pick(INTEGERS), pick(FLOATS), pick(TEXTS), pick(DTYPES), pick(ODD_DTYPES)),
                *([], (), [pick(INTEGERS)], [pick(INTEGERS), pick(INTEGERS)], slice(1, None, -1)),
                *(torch.device("meta"), self._change()(torch.ones(2, 3)), self._integers((4,)), object()),
            ]
        )

    def _integers(self, shape: tuple[int, ...]) -> Tensor:
        dtype = self.random.choice([torch.int64, torch.int64, torch.int32, torch.int8, torch.uint8, torch.int16])
        info = torch.iinfo(dtype)
        values = [info.min, info.max, -1 if info.min else 0, 0, 1, 3, 4, 5, 100, min(10**6, info.max)]
        made = torch.tensor(self.random.choices(values, k=max(1, torch.Size(shape).numel())), dtype=dtype)
        return made[: torch.Size(shape).numel()].reshape(shape)

    def _change(self) -> Callable[[Tensor], Tensor]:
        dtype, odd = self.random.choice(DTYPES), self.random.choice(ODD_DTYPES)
        number, special = self.random.choice(INTEGERS[:9]), self.random.choice(FLOATS)
        huge = self.random.choice([10**3, 10**6, 10**10])
        changes: list[Callable[[Tensor], Tensor]] = [
            lambda x: x.to(dtype),
            lambda x: x.to(dtype),
            lambda x: x.to(odd),
            lambda x: x[..., :0],
            lambda x: x[:0],
            lambda x: torch.zeros(()).to(x.dtype),
            lambda x: x[None, None],
            lambda x: x.reshape(-1),
            lambda x: x.reshape(-1)[:1],
            lambda x: x[(None,) * 62],
            lambda x: x.transpose(0, -1),
            lambda x: torch.stack([x, x], -1)[..., 0],
            lambda x: x.reshape(-1)[:1].expand(huge, 3),
            lambda x: x.reshape(-1)[:1].expand(x.shape),
            lambda x: torch.full_like(x, number),
            lambda x: torch.full_like(x, special) if x.is_floating_point() else x - 1,
            lambda x: self._integers(tuple(x.shape)),
            lambda x: self._integers(tuple(x.shape)).to(x.dtype),
            lambda x: torch.cat([x, x], -1),
            lambda x: x.to_sparse(),
            lambda x: torch.sparse_coo_tensor([[number]], [1.0], (2,), check_invariants=False),
            lambda x: torch.sparse_csr_tensor([0, 900], [0], [1.0], (1, 2), check_invariants=False),
            lambda x: x.to("meta"),
            lambda x: x.to(torch.complex64).conj(),
            lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8),
            lambda x: torch.ones(
                self.random.choices([0, 1, 2, 3, 4, 9, 70], k=self.random.randrange(6)), dtype=x.dtype
            ),
        ]
        return _forgiving(self.random.choice(changes))


def _forgiving(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def changed(tensor: Tensor) -> Tensor:
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.numel() > 10_000:
            return tensor  # it is hostile already, and to change it could take long, or end the process here
        try:
            return change(tensor)
        except Exception:
            return tensor

    return changed


Case = Callable[[Mutator], Callable[[], Any]]
"""Prepares one hostile call; what it gives makes the call."""


def cases() -> Iterator[tuple[str, Case]]:
    """What there is to call, by name."""
    functions = TorchFunctions(Level.ALL)
    functions.serve(LIMITS, torch.device("cpu"))
    for name, entry in listed(Level.ALL).items():

        def function(mutator: Mutator, name: str = name, entry: Any = entry) -> Callable[[], Any]:
            args, kwargs = mutator.call(mutator.random.choice(samples(entry)))
            offered = functions.get(name)
            assert offered is not None
            return _recorded(mutator, lambda args: offered(*args, **kwargs), args)

        yield name, function
    for name, layer in LAYERS.items():

        def forward(mutator: Mutator, name: str = name, layer: Any = layer) -> Callable[[], Any]:
            made, given = layer.settings, layer.inputs()
            if mutator.random.random() < 0.7:
                made = mutator.call(made)
            if mutator.random.random() < 0.7:
                given = mutator.call((given, {}))[0]

            def run(args: tuple[Any, ...]) -> Any:
                module = functions.constructor(layer.cls, name)(*made[0], **made[1])
                with functions.checking(name, LayerCheck(module), args, {}):
                    return module(*args)

            return _recorded(mutator, run, given)

        yield name, forward


def _recorded(mutator: Mutator, run: Callable[[tuple[Any, ...]], Any], args: tuple[Any, ...]) -> Callable[[], Any]:
    """The call, and half of the time its way back."""
    if mutator.random.random() < 0.5:
        return lambda: run(args)

    def there_and_back() -> None:
        leaves = [_leaf(each) for each in args]
        # As on an owner: what arrives is no leaf, and may be written to.
        result = run(
            tuple(each.view_as(each) if isinstance(each, Tensor) and each.requires_grad else each for each in leaves)
        )
        found = result if isinstance(result, (tuple, list)) else [result]
        for each in found[:8]:
            if isinstance(each, Tensor) and each.requires_grad:
                torch.autograd.backward(each.abs().sum() if each.is_complex() else each.sum(), retain_graph=True)

    return there_and_back


def _leaf(value: Any) -> Any:
    plain = isinstance(value, Tensor) and value.layout is torch.strided and value.dtype in DTYPES[6:]
    if not plain:
        return value
    return value.detach().requires_grad_()


def main(seed: int, examples: int, notes: Path, names: list[str]) -> None:
    """Runs all cases, or those of some names."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    note = os.open(notes, os.O_WRONLY | os.O_CREAT)
    for name, case in cases():
        if names and name not in names:
            continue
        for example in range(examples):
            key = f"{seed} {name} {example}"
            os.pwrite(note, f"{key:<120}\n".encode(), 0)
            call = case(Mutator(hash_of(key)))
            began = time.perf_counter()
            try:
                call()
            except Exception as error:
                text = str(error)
                if isinstance(error, MemoryError) or "allocate memory" in text:
                    print(f"{key}: {type(error).__name__}: {text[:200]!r}", flush=True)
            taken = time.perf_counter() - began
            if taken > SECONDS:
                print(f"{key}: took {taken:.1f} s", flush=True)
    os.pwrite(note, f"{'done':<120}\n".encode(), 0)


def hash_of(key: str) -> int:
    """A number that is the same in every process."""
    return int.from_bytes(key.encode()[-8:], "little") ^ sum(
        each * 31**place for place, each in enumerate(key.encode())
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
