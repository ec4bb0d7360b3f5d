"""Tests that classes and functions travel by name, and that the receiver has to know the name."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ps_service.functions.groups import Level
from ps_service.functions.listing import listed
from ps_wire.codec.names import name_of
from ps_wire.codec.payload import PayloadReader
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.errors import InvalidArgumentError


class Shop:
    @staticmethod
    def tidy() -> None: ...

    @classmethod
    def open(cls) -> None: ...

    def sell(self) -> None: ...


@pytest.mark.parametrize(
    ("thing", "name"),
    [
        (nn.Linear, "torch.nn.modules.linear.Linear"),
        (Shop, f"{__name__}.Shop"),
        (Shop.tidy, f"{__name__}.Shop.tidy"),
        (Shop.open, f"{__name__}.Shop.open"),
        (Shop.sell, f"{__name__}.Shop.sell"),
        (torch.add, "torch.add"),
        (torch.einsum, "torch.functional.einsum"),
        (F.relu, "torch.nn.functional.relu"),
        (F.gelu, "torch.nn.functional.gelu"),
        (torch.Tensor.add, "torch.Tensor.add"),
        (torch.Tensor.__add__, "torch.Tensor.__add__"),
        (torch.linalg.norm, "torch.linalg.norm"),
        (torch.linalg.svd, "torch.linalg.svd"),
        (len, "builtins.len"),
        ("any.text", "any.text"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_name_says_where_others_find_it(thing: Any, name: str) -> None:
    assert name_of(thing) == name


@pytest.mark.parametrize("thing", [torch.optim.SGD([torch.zeros(1)]), torch.ones(1), 3, None])
def test_an_object_has_no_name(thing: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"not an object of {type(thing).__name__}"):
        name_of(thing)


@pytest.mark.parametrize("function", [torch.add, torch.nonzero, F.relu, F.embedding, torch.linalg.norm, min])
def test_torchs_functions_are_found_by_their_names(function: Callable[..., Any]) -> None:
    assert listed(Level.BASIC)[name_of(function)].function is function


@pytest.mark.parametrize("name", ["from_file", "frombuffer", "empty", "empty_like", "load", "save", "set_num_threads"])
def test_functions_that_do_more_than_compute_are_not_among_them(name: str) -> None:
    assert not any(each.rpartition(".")[2] == name for each in listed(Level.ALL))


def test_an_object_that_cannot_be_imported_has_no_name() -> None:
    def inside() -> None: ...

    for function in (inside, lambda: None):
        with pytest.raises(InvalidArgumentError, match="Define it in a module that the owner imports"):
            name_of(function)
    with pytest.raises(InvalidArgumentError, match="call it through a handle to the object"):
        name_of(Shop().sell)


def test_the_program_that_runs_is_named_as_others_import_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "store" / "shop.py"
    program.parent.mkdir()
    program.write_text(
        "from ps_wire.codec.names import name_of\n"
        "def sell(): ...\n"
        "class Till: ...\n"
        "names = [name_of(sell), name_of(Till)]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    # As `python store/shop.py` and `python -m store.shop` do.
    as_file = runpy.run_path(str(program), run_name="__main__")
    as_module = runpy.run_module("store.shop", run_name="__main__", alter_sys=True)
    assert as_file["sell"].__module__ == as_module["sell"].__module__ == "__main__"
    assert as_file["names"] == ["shop.sell", "shop.Till"]
    assert as_module["names"] == ["store.shop.sell", "store.shop.Till"]


def test_functions_and_classes_are_sent_by_name_and_looked_up() -> None:
    message = Encoder(None).encode([torch.add, {"cls": nn.Linear}])
    known = {"torch.add": torch.add, "torch.nn.modules.linear.Linear": nn.Linear}
    assert Decoder(PayloadReader(), on_name=known.__getitem__).decode(message) == [torch.add, {"cls": nn.Linear}]
    with pytest.raises(InvalidArgumentError, match=r"'torch\.add' is named here, where nothing can be called by name"):
        Decoder(PayloadReader()).decode(message)
