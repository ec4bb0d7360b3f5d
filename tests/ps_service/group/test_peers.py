"""Tests the errors of an owner that is in no group."""

from __future__ import annotations

import pytest

from ps_service.group.peers import Peers
from ps_service.hosting.references import RRef
from ps_wire.errors import ForeignHandleError, UnavailableError
from ps_wire.refs import ContextId, Ref, new_object_id
from ps_wire.v1.operations_pb2 import StatusRequest

CONTEXT = ContextId(bytes(16), 1)


def test_an_owner_alone_refuses_handles_of_others_with_advice() -> None:
    ref = Ref("ps1", new_object_id())
    with pytest.raises(ForeignHandleError, match=r"belongs to owner 'ps1'.*--directory"):
        Peers().foreign(ref, None)


def test_an_owner_alone_keeps_its_own_directory() -> None:
    assert Peers().keeps_directory
    with pytest.raises(UnavailableError, match="its own directory"):
        Peers().find("ps1", None, 1.0)


def test_an_owner_alone_hands_out_its_own_references_as_they_are() -> None:
    alone, own = Peers(), RRef(5)
    assert alone.departing(own, CONTEXT) is own
    assert alone.departing(5, CONTEXT) is None
    assert alone.local(own) is own
    assert (alone.nested_pass(CONTEXT), alone.borrowed) == (None, 0)


def test_a_reference_of_an_owner_alone_says_what_calls_need() -> None:
    own = RRef(5)
    for name in ("rpc_sync", "rpc_async", "remote", "to_here"):
        with pytest.raises(AttributeError, match=rf"{name}\(\) of a reference needs .* start it with --directory"):
            getattr(own, name)
    assert not hasattr(own, "value") and own.local_value() == 5


async def test_an_owner_alone_has_nobody_to_ask() -> None:
    assert list(await Peers().members(1.0)) == []
    with pytest.raises(UnavailableError, match="start it with --directory"):
        await Peers().ask("127.0.0.1:1", "Status", StatusRequest(), 1.0)
