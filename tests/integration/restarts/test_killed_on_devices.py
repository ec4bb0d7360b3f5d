"""Owners on a device that are killed, replayed, exported, and whose modules move."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

import ps_reader
import trainer_client as tc
from ps_service import hosted
from ps_service.durability.point_in_time import Moment, build
from ps_service.engine import Engine
from tests.allowed import allowed
from tests.conftest import StartProcess
from tests.integration.restarting import Owner
from tests.integration.restarts.conftest import checkpoint
from tests.integration.support import bits

DEVICES = ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)]
OPTIMIZERS: list[Any] = [
    (optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (optim.Adagrad, {"lr": 0.1}),
    (optim.AdamW, {"lr": 0.1, "amsgrad": True}),
    (optim.Adam, {"lr": 0.1, "fused": True}),
]

# Torch says so when the first thread that computes there is one of its autograd engine.
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS, but there was no current CUDA context")


@hosted
class Network(nn.Module):
    """Has running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


@hosted
class Noise(nn.Module):
    """Draws from the default generator of its device."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("place", torch.zeros(()))

    def forward(self) -> torch.Tensor:
        return torch.rand(3, device=self.place.device)


@hosted
class Late(nn.Module):
    """Makes a buffer in its first call, and adds to it in later ones."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = x if self.seen is None else torch.cat([self.seen, x])
        return self.seen


NETWORK, NOISE, LATE = f"{__name__}.Network", f"{__name__}.Noise", f"{__name__}.Late"


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    # Kernels of CUDA add in the same order in every run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return torch.device(request.param)


def on(device: torch.device, folder: Path, name: str = "ps0") -> Owner:
    return Owner(folder / name, name, modules=[sys.modules[__name__]], device=device, durability="always")


@pytest.fixture
async def owner(device: torch.device, tmp_path: Path) -> AsyncIterator[Owner]:
    async with on(device, tmp_path) as made:
        yield made


@pytest.fixture
async def ps(owner: Owner) -> AsyncIterator[tc.Client]:
    async with tc.connect(owner.address) as client:
        yield client


def batch(i: int) -> torch.Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(i))


class Trained:
    """A module on an owner, and the same in this process, which make the same passes."""

    def __init__(self, net: Any, opt: Any, local: nn.Module, local_opt: optim.Optimizer, device: torch.device) -> None:
        self.net, self.opt, self.local, self.local_opt, self.device = net, opt, local, local_opt, device

    @classmethod
    async def made(cls, ps: tc.Client, device: torch.device, kind: Any, options: Any, **placed: Any) -> Trained:
        torch.manual_seed(1)
        local = Network().to(device)
        net = await ps.module(NETWORK, seed=1, name="net", **placed)
        opt = await ps.optimizer(kind, net.parameters(), name="opt", **options)
        return cls(net, opt, local, kind(local.parameters(), **options), device)

    async def pass_of_both(self, ps: tc.Client, i: int) -> None:
        async with ps.context() as ctx:
            loss = (await self.net(batch(i))).square().sum()
            if i % 2:
                await ctx.backward(loss, step=self.opt)
            else:
                await ctx.backward(loss)
                await self.opt.step(ctx)
        self.local(batch(i).to(self.device)).cpu().square().sum().backward()
        self.local_opt.step()
        self.local_opt.zero_grad()

    async def assert_same(self) -> None:
        expected = {name: value.cpu() for name, value in self.local.state_dict().items()}
        assert bits(await self.net.state_dict()) == bits(expected)
        state = (await self.opt.state_dict())["state"]
        for place, entry in self.local_opt.state_dict()["state"].items():
            assert bits(state[place]) == bits({name: value.cpu() for name, value in entry.items()})


# The others are killed on the CPU elsewhere.
@pytest.mark.parametrize(
    ("device", "kind", "options"),
    [("cpu", *OPTIMIZERS[-1]), *(pytest.param("cuda:0", *each, marks=pytest.mark.gpu) for each in OPTIMIZERS)],
    ids=lambda each: getattr(each, "__name__", None),
    indirect=["device"],
)
async def test_every_acknowledged_step_is_there(
    owner: Owner, ps: tc.Client, device: torch.device, kind: Any, options: dict[str, Any]
) -> None:
    trained = await Trained.made(ps, device, kind, options)
    for i in range(9):
        await trained.pass_of_both(ps, i)
        if i == 4:
            await checkpoint(owner)
        if i in (2, 6):
            await owner.crash()
            hosted = owner.server.engine.registry.named("net").value
            assert {each.device for each in (*hosted.parameters(), *hosted.buffers())} == {device}
            await trained.assert_same()
    await owner.restart()
    await trained.assert_same()


async def test_the_generators_go_on(owner: Owner, ps: tc.Client, device: torch.device) -> None:
    noise = await ps.module(NOISE)
    torch.manual_seed(3)
    expected = [torch.rand(3, device=device).cpu() for _ in range(6)]
    torch.manual_seed(3)
    drawn = []
    for i in range(6):
        drawn.append(await noise())
        await (owner.server.drain(20) if i == 3 else owner.server.stop())
        torch.manual_seed(99)  # another process begins with other numbers
        await owner.start()
    assert bits(drawn) == bits(expected)


async def test_an_earlier_state_is_built(owner: Owner, ps: tc.Client, device: torch.device, tmp_path: Path) -> None:
    trained = await Trained.made(ps, device, optim.Adagrad, {"lr": 0.1})
    for i in range(4):
        await trained.pass_of_both(ps, i)
    await ps.durable()
    expected = {name: value.cpu().clone() for name, value in trained.local.state_dict().items()}
    for i in range(4, 6):
        await trained.pass_of_both(ps, i)
    await owner.server.drain(20)

    def made(name: str, data_dir: Path) -> Engine:
        return Engine(name, allowed(sys.modules[__name__]), device=device, data_dir=data_dir)

    await asyncio.to_thread(build, owner.folder, Moment({"opt": 4}, None), tmp_path / "built" / "ps0", made)
    async with on(device, tmp_path / "built") as earlier, tc.connect(earlier.address) as looking:
        assert bits(await (await looking.attach("net")).state_dict()) == bits(expected)


async def test_snapshots_and_exports_have_what_was(
    owner: Owner, ps: tc.Client, device: torch.device, tmp_path: Path
) -> None:
    trained = await Trained.made(ps, device, optim.SGD, {"lr": 0.1})
    await trained.pass_of_both(ps, 0)
    net = trained.net
    pinned = await ps.snapshot("a", [net])
    before, x = await net.state_dict(), batch(7)
    expected = trained.local.eval()(x.to(device)).cpu().detach()
    trained.local.train()
    await ps.export(tmp_path / "out")
    await trained.pass_of_both(ps, 1)
    assert bits(await pinned[net].state_dict()) == bits(before)
    torch.testing.assert_close(await pinned[net].read(x), expected, rtol=0, atol=0)
    with ps_reader.open(tmp_path / "out") as reader:
        exported = reader.current.state_dict("net")
        assert bits({name: torch.tensor(exported[name]) for name in before}) == bits(before)


@pytest.mark.parametrize("target", DEVICES)
async def test_modules_and_optimizers_move_to_an_owner_on_another_device(
    owner: Owner, device: torch.device, target: str, tmp_path: Path
) -> None:
    async with on(torch.device(target), tmp_path, "ps1") as other, tc.connect(owner.address, other.address) as ps:
        trained = await Trained.made(ps, device, optim.AdamW, {"lr": 0.1}, owner="ps0")
        for i in range(3):
            await trained.pass_of_both(ps, i)
        await ps.move("net", to="ps1")
        await trained.assert_same()
        found = other.server.engine.registry.named("net").value
        assert {each.device for each in found.parameters()} == {torch.device(target)}
        await other.crash()
        await trained.assert_same()
        if target == device.type or target == str(device):
            for i in range(3, 5):
                await trained.pass_of_both(ps, i)
            await trained.assert_same()


@pytest.mark.gpu
async def test_a_gpu_that_has_failed_leaves_no_request_without_an_answer(
    start_process: StartProcess, tmp_path: Path
) -> None:
    owner = await start_process("--name", "ps0", "--device", "cuda:0", "--data-dir", str(tmp_path))
    async with asyncio.timeout(60), tc.connect(owner.address) as ps:
        net, items = await ps.module(nn.Embedding, 4, 2), await ps.table("items", 2)
        for ids in ([9], [1]):
            with pytest.raises(tc.PsError):
                await net(torch.tensor(ids))
        await items.upsert(torch.arange(3), torch.ones(3, 2))
        assert (await items.read(torch.arange(3))).found.all()


async def test_a_buffer_that_a_call_has_made_is_on_the_device_again(owner: Owner, ps: tc.Client) -> None:
    net = await ps.module(LATE, name="net")
    expected = torch.cat([batch(i) for i in range(4)])
    for i in range(4):
        await net(batch(i))
        if i == 2:
            await checkpoint(owner)
        await owner.crash()
    assert torch.equal((await net.state_dict())["seen"], expected)
