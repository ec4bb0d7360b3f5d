"""Owners inside the program that trains on them: classes as they are, several owners, and what is left at the end."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service import hosted, remote
from tests import hosted_models
from tests.integration.support import bits
from trainer_client.testing import async_ps, ps

__all__ = ["async_ps", "ps"]


class Net(nn.Module):
    """Not marked."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)

    @remote
    def width(self) -> int:
        return self.layers[0].out_features


def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def trained(x: torch.Tensor) -> tuple[list[float], Any]:
    """Losses and states of a local twin."""
    torch.manual_seed(3)
    net = Net()
    opt = optim.Adam(net.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses, bits(dict(net.state_dict()))


def test_a_class_that_is_not_marked_trains_as_locally(ps: Any) -> None:
    x = torch.randn(5, 3)
    net = ps.module(Net, seed=3)
    opt = ps.optimizer(optim.Adam, net.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        with ps.context() as ctx:
            loss = net(x).square().mean()
            ctx.backward(loss, step=opt)
        losses.append(loss.item())
    assert (losses, bits(net.state_dict())) == trained(x)
    assert ps.module(cls=Net, name="named").width() == 4
    named = ps.optimizer(optim.SGD, net.parameters(), lr=0.1, name="by name")
    assert repr(ps.optimizer(name="by name")) == repr(named)
    assert net.width() == 4 and torch.equal(ps.call(doubled, x), 2 * x)


def test_batches_are_looked_up_in_advance(ps: Any) -> None:
    net, batches = ps.module(Net), [torch.full((1, 3), float(i)) for i in range(3)]
    found = [looked_up.wait().item() for _, looked_up in ps.prefetch(batches, net, depth=1)]
    assert found == [net(x).item() for x in batches]


async def test_the_asyncio_client_does_the_same(async_ps: tc.Client) -> None:
    x = torch.randn(5, 3)
    net = await async_ps.module(Net, seed=3)
    opt = await async_ps.optimizer(optim.Adam, net.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        async with async_ps.context() as ctx:
            loss = (await net(x)).square().mean()
            await ctx.backward(loss, step=opt)
        losses.append(loss.item())
    assert (losses, bits(await net.state_dict())) == trained(x)


def test_a_class_that_is_defined_again_is_another_one(ps: Any) -> None:
    def cell(factor: float) -> type[nn.Module]:
        class Scaled(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return factor * x

        return Scaled

    x, first, second = torch.ones(2), cell(2.0), cell(3.0)
    old = ps.module(first, name="net")
    assert old == ps.module(first, name="net")
    with pytest.raises(tc.errors.NameConflictError, match=r"'net' exists already.*cell.<locals>.Scaled#2"):
        ps.module(second, name="net")
    new = ps.module(second, name="net", replace=True)
    assert new(x).tolist() == [3.0, 3.0] and ps.module(first)(x).tolist() == [2.0, 2.0]


def test_what_is_torchs_or_a_name_is_refused_as_by_any_owner(ps: Any) -> None:
    with pytest.raises(tc.errors.NotAllowedError, match="DataParallel"):
        ps.module(nn.DataParallel)
    with pytest.raises(tc.errors.NotAllowedError, match=r"test_local_owners\.Net"):
        ps.module(f"{__name__}.Net")
    with pytest.raises(tc.errors.InvalidArgumentError, match="a lambda, or what is defined inside a function"):
        ps.call(lambda: 1)


async def test_other_programs_join_and_find_all_owners() -> None:
    async with tc.local(owners=2, imports=[hosted_models], http="127.0.0.1:0") as ps:
        assert ps.owners == ["ps0", "ps1"]
        net = await ps.module(Net, name="net", owner="ps1")
        items = await ps.table("items", dim=2, optimizer=tc.tables.SGD(lr=0.1), owners=["ps0", "ps1"])
        ids = torch.arange(6)
        rows = await items(ids)
        async with tc.connect(directory=ps.address) as other:
            there = await other.attach("net", owner="ps1")
            x = torch.ones(1, 3)
            assert torch.equal(await there(x), await net(x))
            assert torch.equal(await (await other.table("items"))(ids), rows)
            await other.create("tests.hosted_models.Counter")
        async with aiohttp.ClientSession() as http, http.get(f"{ps.http_url}/healthz") as response:
            assert response.status == 200


def test_it_goes_on_from_its_data_directory(tmp_path: Path) -> None:
    def run() -> Any:
        with tc.local(data_dir=tmp_path, imports=[Net]) as ps:
            net = ps.module(Net, name="net", seed=1)
            opt = ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
            with ps.context() as ctx:
                version = ctx.backward(net(torch.ones(1, 3)).sum(), step=opt)
            return dict(version)

    assert [run(), run()] == [{"ps0": 1}, {"ps0": 2}]


def test_nothing_is_left_at_the_end() -> None:
    with tc.local() as ps:
        ps.module(Net)
        before = {each.name for each in threading.enumerate()}
    with pytest.raises(ZeroDivisionError), tc.local(owners=3) as ps:
        address = ps.address
        ps.module(Net)
        raise ZeroDivisionError
    assert {each.name for each in threading.enumerate()} <= before
    with pytest.raises(tc.errors.UnavailableError), tc.connect(address, connect_timeout=0.0):
        pass


async def test_a_client_that_was_awaited_ends_them_when_it_is_closed() -> None:
    ps = await tc.local()
    address = ps.address
    await ps.close()
    with pytest.raises(tc.errors.UnavailableError):
        await tc.connect(address, connect_timeout=0.0)


async def test_owners_that_cannot_start_leave_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "ps1").write_text("no folder")
    with pytest.raises(OSError):
        await tc.local(owners=2, data_dir=tmp_path)
    (tmp_path / "ps1").unlink()
    async with tc.local(owners=2, data_dir=tmp_path) as ps:
        assert ps.owners == ["ps0", "ps1"]


def test_wrong_arguments_are_refused_at_once() -> None:
    with pytest.raises(tc.errors.InvalidArgumentError, match="owners is 0; at least one is needed"):
        tc.local(owners=0)
    with pytest.raises(ValueError, match="has nothing that is decorated"):
        tc.local(imports=["json"])
    with pytest.raises(ImportError):
        tc.local(imports=["no_such_module"])


@hosted
class Marked:
    pass


async def test_marked_classes_of_imports_can_be_named() -> None:
    async with tc.local(imports=[Marked]) as ps:
        await asyncio.gather(ps.create(Marked), ps.create(f"{__name__}.Marked"))
