"""Owners started by the command line that find each other in a directory; trainers that know only one of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import trainer_client as tc
from tests.conftest import StartProcess
from tests.hosted_models import made_elsewhere
from tests.integration.support import COUNTER, until


async def started(start_process: StartProcess) -> tuple[str, str]:
    """Two owners of one group; the first keeps its directory."""
    first = await start_process("--name", "ps0", "--directory", "self")
    second = await start_process("--name", "ps1", "--directory", first.address)
    return first.address, second.address


async def test_a_hosted_module_calls_one_of_another_owner(start_process: StartProcess) -> None:
    first, second = await started(start_process)
    async with tc.connect(first, second) as ps:
        inner = await ps.module("torch.nn.Linear", 3, 3, owner="ps1", seed=0)
        outer = await ps.module("tests.hosted_models.Delegating", owner="ps0")
        opt = await ps.optimizer(torch.optim.SGD, [*outer.parameters(), *inner.parameters()], lr=0.1)
        state = await inner.state_dict()
        x = torch.rand(2, 3, requires_grad=True)
        async with ps.context() as ctx:
            loss = (await outer(x, inner)).sum()
            await ctx.backward(loss)
            found = await ctx.get_gradients()
            await opt.step(ctx)
        weight, bias = (state[name].requires_grad_() for name in ("weight", "bias"))
        scale = torch.tensor(2.0, requires_grad=True)
        expected = torch.autograd.grad((scale * (x + F.linear(x, weight, bias))).sum(), (x, scale, weight, bias))
        by_name = {key.ref.parameter if isinstance(key, tc.RRef) else "x": value for key, value in found.items()}
        assert sorted(by_name) == ["bias", "scale", "weight", "x"]
        for name, gradient in zip(("x", "scale", "weight", "bias"), expected, strict=True):
            torch.testing.assert_close(by_name[name], gradient)
        after = await inner.state_dict()
        torch.testing.assert_close(after["weight"], state["weight"].detach() - 0.1 * expected[2])


@pytest.mark.parametrize("both", [False, True], ids=["one optimizer part", "two parts"])
async def test_a_backward_with_a_step_reaches_the_owners_that_hosted_code_has_called(
    start_process: StartProcess, both: bool
) -> None:
    first, second = await started(start_process)
    async with tc.connect(first, second) as ps:
        inner = await ps.module("torch.nn.Linear", 3, 3, owner="ps1", seed=0)
        outer = await ps.module("tests.hosted_models.Delegating", owner="ps0")
        opt = await ps.optimizer(torch.optim.SGD, [*outer.parameters(), *(inner.parameters() if both else ())], lr=0.1)
        state = await inner.state_dict()
        x = torch.rand(2, 3)
        async with ps.context() as ctx:
            versions = await ctx.backward((await outer(x, inner)).sum(), step=opt)
        assert versions == ({"ps0": 1, "ps1": 1} if both else {"ps0": 1})
        weight, bias = (state[name].requires_grad_() for name in ("weight", "bias"))
        scale = torch.tensor(2.0, requires_grad=True)
        wanted = torch.autograd.grad((scale * (x + F.linear(x, weight, bias))).sum(), (scale, weight))
        after = {**await inner.state_dict(), **await outer.state_dict()}
        torch.testing.assert_close(after["scale"], scale.detach() - 0.1 * wanted[0])
        torch.testing.assert_close(after["weight"], weight.detach() - (0.1 * wanted[1] if both else 0))
        # The pass has ended on both owners, although the trainer has called only one of them.
        for owner in ("ps0", "ps1"):
            await until(ps, lambda status: status.contexts == 0, owner)


async def test_a_trainer_reaches_an_owner_of_which_it_was_handed_a_handle(start_process: StartProcess) -> None:
    first, _ = await started(start_process)
    async with tc.connect(first) as ps:
        assert ps.owners == ["ps0"]
        rref = await ps.call(made_elsewhere, "ps1")
        assert rref.owner == "ps1" and ps.owners == ["ps0", "ps1"]
        counter = await ps.attach(str(rref))
        assert await counter.add(4) == 7
        status = await ps.status("ps1")
        assert status.references >= 2
        with pytest.raises(tc.errors.UnknownNameError, match="unknown"):
            await ps.others.reach("unknown")


async def test_status_lists_members_and_borrowed_references(start_process: StartProcess) -> None:
    first, second = await started(start_process)
    async with tc.connect(first, second) as ps:
        counter = await ps.create(COUNTER, 5, owner="ps1")
        keeper = await ps.create("tests.hosted_models.Counter", counter, owner="ps0")
        status = await ps.status("ps0")
        assert [(member.name, member.address) for member in status.members] == [("ps0", first), ("ps1", second)]
        assert status.borrowed == 1
        del keeper
        await until(ps, lambda status: not status.borrowed, "ps0")


async def test_an_owner_that_cannot_join_says_why(start_process: StartProcess) -> None:
    first, _ = await started(start_process)
    with pytest.raises(AssertionError):
        await start_process("--name", "ps1", "--directory", first)


async def test_an_owner_that_was_killed_has_its_place_again_at_once(start_process: StartProcess) -> None:
    first = await start_process("--name", "ps0", "--directory", "self")
    flags = ("--name", "ps1", "--directory", first.address)
    second = await start_process(*flags)
    second.process.kill()
    await second.process.wait()
    again = await start_process(*flags, "--listen", second.address)
    async with tc.connect("ps1", directory=first.address) as ps:
        assert (await ps.create(COUNTER)).owner == "ps1"
        members = (await ps.status("ps0")).members
    assert [(member.name, member.address) for member in members] == [("ps0", first.address), ("ps1", again.address)]
