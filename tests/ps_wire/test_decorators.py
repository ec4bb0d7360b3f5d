"""Tests that classes and methods are allowed only if they are marked themselves."""

from __future__ import annotations

from torch import nn

from ps_service import hosted as hosted_by_service
from ps_wire.codec.names import name_of
from ps_wire.decorators import hosted, is_hosted, is_remote, remote


@hosted
class Marked(nn.Module):
    @remote
    def open(self) -> None: ...

    def closed(self) -> None: ...

    @hosted
    class Inner: ...


class Heir(Marked):
    def open(self) -> None: ...


class Unmarked: ...


def test_the_mark_is_worn_by_the_very_class() -> None:
    assert is_hosted(Marked)
    assert is_hosted(Marked.Inner)
    assert not is_hosted(Unmarked)
    assert not is_hosted(nn.Linear)


def test_a_subclass_does_not_inherit_the_mark() -> None:
    assert not is_hosted(Heir)
    assert is_hosted(hosted(type("Again", (Heir,), {})))
    assert not is_hosted(Heir)


def test_only_marked_methods_are_remote() -> None:
    assert is_remote(Marked.open)
    assert is_remote(Marked().open)
    assert not is_remote(Marked.closed)
    assert not is_remote(Marked().forward)


def test_an_override_needs_a_mark_of_its_own() -> None:
    assert not is_remote(Heir.open)
    assert is_remote(Heir.__mro__[1].open)


def test_an_attribute_that_only_looks_like_a_mark_is_none() -> None:
    class Pretender:
        __ps_hosted__ = True

        def __getattr__(self, name: str) -> object:
            return 1

    assert not is_hosted(Pretender)
    assert not is_remote(Pretender())


def test_marking_gives_back_the_same_object() -> None:
    def method() -> None: ...

    assert hosted(Unmarked.__class__("Plain", (), {})).__name__ == "Plain"
    assert remote(method) is method
    assert hosted_by_service is hosted


def test_a_class_is_named_by_module_and_qualified_name() -> None:
    assert name_of(nn.Linear) == "torch.nn.modules.linear.Linear"
    assert name_of(Marked.Inner) == f"{__name__}.Marked.Inner"
    assert name_of("torch.nn.Linear") == "torch.nn.Linear"
