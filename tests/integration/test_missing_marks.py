"""Tests that a mark that is missing in hosted code is named: in the log of the owner, and in the errors of trainers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import torch

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server
from tests import half_marked


@pytest.fixture
async def ps() -> AsyncIterator[tc.Client]:
    engine = Engine("ps0", AllowList.importing([half_marked.__name__]))
    async with Server(engine) as server, tc.connect(server.address) as client:
        yield client


async def test_a_method_without_a_mark_is_named(ps: tc.Client) -> None:
    net = await ps.module(half_marked.Net)
    text = (
        "tests.half_marked.Net offers no 'accuracy', only forward: its class has that method without a mark. Mark it "
        "with @remote, and start the owner again"
    )
    for handle in (net, await ps.attach(str(net))):
        with pytest.raises(AttributeError) as caught:
            handle.accuracy(torch.ones(1, 3))
        assert str(caught.value) == text


@pytest.mark.parametrize("name", ["layer", "extra_repr", "precision", "_hidden"])
async def test_only_a_method_of_the_class_is_said_to_need_a_mark(ps: tc.Client, name: str) -> None:
    net = await ps.module(half_marked.Net)
    with pytest.raises(AttributeError, match="offers no") as caught:
        getattr(net, name)
    assert "@remote" not in str(caught.value)


async def test_a_class_with_marked_methods_and_no_mark_is_named(ps: tc.Client) -> None:
    text = (
        "class 'tests.half_marked.NotHosted' is not on this owner's allow-list: it has methods marked @remote, but "
        "@hosted is missing on the class. Write @hosted above it, and start the owner again"
    )
    name = "tests.half_marked.NotHosted"
    for asked in (ps.create(half_marked.NotHosted), ps.module(name), ps.remote(name), ps.call(f"{name}.go")):
        with pytest.raises(tc.errors.NotAllowedError) as caught:
            await asked
        assert str(caught.value) == text
    with pytest.raises(tc.errors.NotAllowedError, match="must be decorated with @remote in a module given to the ow"):
        await ps.call(half_marked.not_remote, 1)


def test_the_owner_warns_of_such_a_class_at_its_start(caplog: pytest.LogCaptureFixture) -> None:
    AllowList.importing([half_marked.__name__])
    assert [each.getMessage() for each in caplog.records] == [
        "class tests.half_marked.NotHosted has methods marked @remote, but @hosted is missing on the class: trainers "
        "cannot make it"
    ]
