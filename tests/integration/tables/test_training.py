"""Tests of training tables: when gradients count, with whom, and what a step refuses."""

from __future__ import annotations

import asyncio
import math

import pytest
import torch
from torch.nn import functional
from torch.optim import lr_scheduler

import trainer_client as tc
from ps_wire.limits import Limits
from tests.conftest import StartOwner
from tests.training import apart
from tests.waiting import until

IDS = torch.tensor([5, -9, 5, 7])
"""Over two owners, both have rows of these."""


async def zeros(ps: tc.Client, name: str = "items", **more: object) -> tc.Table:
    """A table whose rows begin with 0, and whose step subtracts the gradient."""
    return await ps.table(name, 2, tc.tables.SGD(lr=1.0), init=tc.tables.Zeros(), **more)  # type: ignore[arg-type]


async def add(ps: tc.Client, items: tc.Table, factor: float = 1.0) -> tc.Stepped:
    """A pass that looks ids up and steps: each row loses `factor` for each time that it occurs."""
    async with ps.context() as ctx:
        return await ctx.backward((await items(IDS)).sum() * factor, step=items.optimizer)


async def values(items: tc.Table) -> list[float]:
    return (await items(IDS))[:, 0].tolist()


@pytest.fixture
async def both(request: pytest.FixtureRequest, start_owner: StartOwner):  # type: ignore[no-untyped-def]
    """Two clients of the same owners: of two, if nothing else is asked for."""
    addresses = [(await start_owner(f"ps{number}")).address for number in range(getattr(request, "param", 2))]
    async with tc.connect(*addresses) as one, tc.connect(*reversed(addresses)) as other:
        yield one, other


Both = tuple[tc.Client, tc.Client]
one_or_two = pytest.mark.parametrize("both", [1, 2], indirect=True, ids=["one owner", "two owners"])


@one_or_two
async def test_nothing_is_applied_before_the_step_and_all_look_ups_of_a_pass_then(both: Both) -> None:
    ps, _ = both
    items = await zeros(ps)
    async with ps.context() as ctx:
        rows, again = await items(IDS), await items(IDS[:2])
        bag = await items.bag(IDS, torch.tensor([0, 1]))
        await ctx.backward(rows.sum() + 10 * again.sum())
        await ctx.backward(bag.sum() * 100)
        assert await values(items) == [0] * 4
        assert await ctx.get_gradients() == {}
        assert set((await items.step(ctx)).values()) == {1}
    assert await values(items) == [-212, -111, -212, -101]
    async with ps.context() as ctx:
        await ctx.backward((await items(IDS)).sum())
    # A pass that ends without a step changes nothing.
    assert await values(items) == [-212, -111, -212, -101]


async def test_two_trainers_share_the_table_and_its_optimizer(both: Both) -> None:
    ps, other = both
    here, there = await zeros(ps), await zeros(other)
    found = await asyncio.gather(*(apart(add(*each)) for each in ((ps, here), (other, there)) for _ in range(5)))
    assert {version for each in found for version in each.values()} == set(range(1, 11))
    assert await values(here) == await values(there) == [-20, -10, -20, -10]


@pytest.mark.parametrize(("both", "reduce"), [(1, "sum"), (2, "mean")], indirect=["both"])
async def test_sync_sums_the_gradients_of_trainers_by_id(both: Both, reduce: str) -> None:
    ps, other = both
    policy = tc.policies.Sync(2, reduce)  # type: ignore[arg-type]
    here, there = await zeros(ps, policy=policy), await zeros(other, policy=policy)
    found = await asyncio.gather(apart(add(ps, here, 1.0)), apart(add(other, there, 3.0)))
    assert [(each.counted, set(each.values())) for each in found] == [(2, {1})] * 2
    total = 4.0 if reduce == "sum" else 2.0
    assert await values(here) == [-2 * total, -total, -2 * total, -total]


@pytest.mark.parametrize(
    "policy",
    [tc.policies.Quorum(1, of=1), tc.policies.BoundedStaleness(4), tc.policies.Async(tc.policies.Scale())],
    ids=str,
)
async def test_other_policies_hold_for_tables(both: Both, policy: tc.policies.Policy) -> None:
    ps, _ = both
    items = await zeros(ps, policy=policy)
    for _ in range(3):
        assert (await add(ps, items)).counted == 1
    assert await values(items) == [-6, -3, -6, -3]


async def test_stale_gradients_of_a_table_can_be_rejected(ps: tc.Client, ps2: tc.Client) -> None:
    items, other = await zeros(ps, policy=tc.policies.Async(tc.policies.Reject(0))), await zeros(ps2)
    async with ps.context() as ctx:
        rows = await items(IDS)
        await apart(add(ps2, other))
        await ctx.backward(rows.sum())
        found = await items.step(ctx)
    assert (found.dropped, found.staleness) == ("stale", 1)
    assert await values(items) == [-2, -1, -2, -1]


@pytest.mark.parametrize(
    ("policy", "dtype"),
    [
        (tc.policies.Async(tc.policies.Compensate(0.5)), torch.bfloat16),
        (tc.policies.Quorum(1, stale=tc.policies.Compensate(0.5)), torch.float32),
    ],
    ids=str,
)
async def test_stale_gradients_of_a_table_are_compensated_row_by_row(
    both: Both, policy: tc.policies.Policy, dtype: torch.dtype
) -> None:
    ps, other = both
    items, there = await zeros(ps, policy=policy, dtype=dtype), await zeros(other, policy=None, dtype=dtype)
    factors = torch.tensor([[1.0, 2.0], [-1.0, 0.5], [3.0, 1.0], [2.0, -2.0]])
    gradients = {5: factors[0] + factors[2], -9: factors[1], 7: factors[3]}
    for turn in range(2):
        then = await rows_by_id(items)
        async with ps.context() as ctx:
            rows = await items(IDS)
            # Others step three times meanwhile, once with other rows, and once with one of these.
            await apart(add(other, there, 0.25))
            await apart(step_on(other, there, torch.tensor([7, 100, -3]), 0.5))
            await apart(step_on(other, there, torch.tensor([11]), 1.0))
            await ctx.backward((rows * factors).sum())
            now = await apart(rows_by_id(there))
            found = await items.step(ctx)
        assert found.dropped == "" and found.staleness == 3, turn
        for id, gradient in gradients.items():
            moved = now[id] - then[id]
            assert moved.abs().sum() > 0
            expected = now[id] - (gradient + 0.5 * gradient * gradient * moved)
            tolerances = {"rtol": 0.02, "atol": 0.0} if dtype is torch.bfloat16 else {"rtol": 1e-6, "atol": 1e-6}
            torch.testing.assert_close((await items(torch.tensor(id))).float(), expected, **tolerances)


async def rows_by_id(items: tc.Table) -> dict[int, torch.Tensor]:
    return {id: row.float() for id, row in zip(IDS.tolist(), await items(IDS), strict=True)}


async def step_on(ps: tc.Client, items: tc.Table, ids: torch.Tensor, factor: float) -> tc.Stepped:
    async with ps.context() as ctx:
        return await ctx.backward((await items(ids)).sum() * factor, step=items.optimizer)


@one_or_two
async def test_a_gradient_that_is_not_finite_changes_no_row_on_any_owner(both: Both) -> None:
    ps, _ = both
    items = await zeros(ps)
    for bad in (math.nan, math.inf):
        async with ps.context() as ctx:
            rows = await items(IDS)
            factors = torch.ones(4, 1)
            factors[3] = bad
            await ctx.backward((rows * factors).sum())
            with pytest.raises(tc.errors.NonFiniteGradientError):
                await items.step(ctx)
        async with ps.context() as ctx:
            with pytest.raises(tc.errors.NonFiniteGradientError):
                await ctx.backward((await items(IDS) * factors).sum(), step=items.optimizer)
    assert await values(items) == [0] * 4
    assert (await add(ps, items)) == dict.fromkeys(items.owners, 1)
    applying = await zeros(ps, "users", non_finite="apply")
    await add(ps, applying, math.inf)
    assert await values(applying) == [-math.inf] * 4


async def test_clipping_by_the_norm_of_all_gradients(both: Both) -> None:
    ps, _ = both
    items, net = await zeros(ps), await ps.module(torch.nn.Linear, 2, 1, name="net", seed=0)
    weight = torch.ones(1, requires_grad=True)
    async with ps.context() as ctx:
        loss = (await items(IDS)).sum() + 4 * (await net(torch.ones(1, 2))).sum() + 2 * weight.sum()
        await ctx.backward(loss)
        members = [*items.parameters(), *net.parameters(), weight]
        # Two numbers per row: 2 * (2^2 + 1 + 1), then 4^2 three times, then 2^2.
        norm = await ctx.clip_grad_norm(members, 0.5)
        assert norm == pytest.approx(math.sqrt(12 + 48 + 4))
        await items.step(ctx)
    clipped = 0.5 / 8
    torch.testing.assert_close(torch.tensor(await values(items)), -clipped * torch.tensor([2.0, 1, 2, 1]))


async def test_a_schedule_scales_the_learning_rates_of_groups_of_rows_as_torch_does(both: Both) -> None:
    ps, _ = both
    groups = [tc.tables.RowGroup(10, 20, lr=0.5), tc.tables.RowGroup(30, 40, weight_decay=0.0)]
    items = await ps.table("items", 1, tc.tables.SGD(lr=0.1), init=tc.tables.Zeros(), groups=groups)
    schedule = await ps.scheduler(lr_scheduler.StepLR, items.optimizer, step_size=1, gamma=0.1)
    ids = torch.tensor([1, 15, 35])
    local = [torch.zeros(1, requires_grad=True) for _ in range(3)]
    rates = (0.1, 0.5, 0.1)
    opt = torch.optim.SGD([{"params": [each], "lr": lr} for each, lr in zip(local, rates, strict=True)])
    expected = lr_scheduler.StepLR(opt, step_size=1, gamma=0.1)
    for _ in range(3):
        async with ps.context() as ctx:
            await ctx.backward((await items(ids)).sum(), step=items.optimizer)
        await schedule.step()
        for each in local:
            each.grad = torch.ones(1)
        opt.step()
        expected.step()
        torch.testing.assert_close((await items(ids))[:, 0], torch.cat(local).detach())


async def test_learning_rates_and_schedules(both: Both) -> None:
    ps, other = both
    items = await zeros(ps)
    schedule = await ps.scheduler(lr_scheduler.StepLR, items.optimizer, step_size=1, gamma=0.5)
    for expected in ([-2, -1, -2, -1], [-3, -1.5, -3, -1.5]):
        await add(ps, items)
        await schedule.step()
        assert await values(items) == expected
    await (await zeros(other)).optimizer.set_options(lr=10.0)
    await add(ps, items)
    assert await values(items) == [-23, -11.5, -23, -11.5]
    for wrong in ({"lr": -1.0}, {"momentum": 0.5}, {"kind": "ftrl"}, {"eps": 1.0}):
        with pytest.raises(tc.errors.InvalidArgumentError):
            await items.optimizer.set_options(**wrong)
    state = await items.optimizer.state_dict()
    assert state["param_groups"][0]["lr"] == 10.0
    state["param_groups"][0]["lr"] = -1.0
    with pytest.raises(tc.errors.InvalidArgumentError):
        await items.optimizer.load_state_dict(state)
    state["param_groups"][0]["lr"] = 1.0
    await items.optimizer.load_state_dict(state)
    await add(ps, items)
    assert await values(items) == [-25, -12.5, -25, -12.5]


@one_or_two
async def test_one_step_for_tables_modules_and_local_parameters(both: Both) -> None:
    ps, _ = both
    items, users = await zeros(ps), await zeros(ps, "users", owners=["ps0"])
    net, weight = await ps.module(torch.nn.Linear, 2, 1, name="net", seed=0), torch.zeros(1, requires_grad=True)
    opt = await ps.optimizer(torch.optim.SGD, [items, users, *net.parameters(), weight], lr=0.5)
    bias = (await net.state_dict())["bias"]

    async def loss() -> torch.Tensor:
        rows = await ps.look_up({items: IDS, users: IDS})
        return (await net(torch.zeros(1, 2))).sum() + rows[items].sum() + rows[users].sum() + weight.sum()

    async with ps.context() as ctx:
        found = await ctx.backward(await loss(), step=opt)
    owners = dict.fromkeys([*(f"{owner}/items" for owner in items.owners), "ps0/users", "ps0"], 1)
    assert found == owners
    assert await values(items) == await values(users) == [-2, -1, -2, -1]
    assert torch.equal((await net.state_dict())["bias"], bias - 0.5) and weight.item() == -0.5
    async with ps.context() as ctx:
        await ctx.backward(await loss() + (await items(IDS)).sum() * math.inf)
        with pytest.raises(tc.errors.NonFiniteGradientError):
            await opt.step(ctx)
    # Nothing has stepped.
    assert await values(users) == [-2, -1, -2, -1] and weight.item() == -0.5
    assert torch.equal((await net.state_dict())["bias"], bias - 0.5)
    only = await ps.optimizer(None, [items])
    async with ps.context() as ctx:
        await ctx.backward(await loss())
        assert await only.step(ctx) == {f"{owner}/items": 2 for owner in items.owners}
    with pytest.raises(tc.errors.InvalidArgumentError, match="beside groups"):
        await ps.optimizer(torch.optim.SGD, [{"params": [items]}], lr=0.5)


async def test_arguments_that_would_hold_for_no_table_are_refused(ps: tc.Client) -> None:
    items, net = await zeros(ps), await ps.module(torch.nn.Linear, 2, 1, name="net")
    for cls, given in (
        (torch.optim.Adam, {}),
        (None, {"lr": 123.0}),
        (None, {"nonsense": 5}),
        (None, {"policy": tc.policies.Sync(5)}),
        (None, {"non_finite": "refuse"}),
        (None, {"reads": "inconsistent"}),
        (None, {"name": "mine"}),
        (None, {"replace": True}),
    ):
        named = "Adam" if cls else f"{next(iter(given))}="
        with pytest.raises(
            tc.errors.InvalidArgumentError, match=rf"have .*{named}.*ps.table\('items'.*\(None, \[items"
        ):
            await ps.optimizer(cls, [items], **given)
    with pytest.raises(tc.errors.InvalidArgumentError, match="the class of an optimizer"):
        await ps.optimizer(None, [items, *net.parameters()])
    with pytest.raises(tc.errors.InvalidArgumentError, match=r"alone: table 'items' .*none that this.*set_policy"):
        await ps.optimizer(torch.optim.SGD, [items, *net.parameters()], lr=0.1, policy=tc.policies.Sync(1))
    await items.optimizer.set_policy(tc.policies.Sync(1))
    with pytest.raises(tc.errors.InvalidArgumentError, match=r"alone: table 'items' .*Sync\(trainers=1"):
        await ps.optimizer(torch.optim.SGD, [items, *net.parameters()], lr=0.1, policy=tc.policies.Async())
    await ps.optimizer(torch.optim.SGD, [items, *net.parameters()], lr=0.1, policy=tc.policies.Sync(1))


async def test_no_other_optimizer_steps_a_table(ps: tc.Client) -> None:
    items, net = await zeros(ps), await ps.module(torch.nn.Linear, 2, 1, name="net")
    with pytest.raises(tc.errors.InvalidArgumentError, match="optimizer of its own"):
        await ps.optimizer(torch.optim.SGD, items.parameters(), lr=0.5)
    with pytest.raises(tc.errors.InvalidArgumentError, match="for tables only"):
        await ps.optimizer("tables.RowOptimizer", net.parameters(), kind="sgd")
    with pytest.raises(tc.errors.InvalidArgumentError, match="another optimizer"):
        await ps.optimizer("tables.RowOptimizer", items.parameters(), name="other", kind="ftrl")


async def test_a_frozen_table_gets_no_gradient(both: Both) -> None:
    ps, _ = both
    items = await zeros(ps)
    await ps.requires_grad_(items.parameters(), False)
    async with ps.context():
        assert not (await items(IDS)).requires_grad
    await ps.requires_grad_(items.parameters(), True)
    await add(ps, items)
    assert await values(items) == [-2, -1, -2, -1]


async def test_weights_of_bags_get_gradients(both: Both) -> None:
    ps, _ = both
    items = await ps.table("items", 3, tc.tables.SGD(lr=1.0), init=tc.tables.Normal(1.0))
    table = (await items(IDS)).clone().requires_grad_()
    weights = torch.tensor([0.5, -1.0, 2.0, 3.0], requires_grad=True)
    own, coefficients = weights.detach().clone().requires_grad_(), torch.randn(2, 3)
    offsets = torch.tensor([0, 3])
    async with ps.context() as ctx:
        bags = await items.bag(IDS, offsets, per_sample_weights=weights)
        await ctx.backward((bags * coefficients).sum(), step=items.optimizer)
        gradient = ctx.gradient(weights)
    expected = functional.embedding_bag(torch.arange(4), table, offsets, mode="sum", per_sample_weights=own)
    (expected * coefficients).sum().backward()
    torch.testing.assert_close(bags, expected)
    assert gradient is None  # the pass has ended with the step
    async with ps.context() as ctx:
        fresh = weights.detach().clone().requires_grad_()
        before = await items(IDS)
        bags = await items.bag(IDS, offsets, per_sample_weights=fresh)
        await ctx.backward((bags * coefficients).sum())
        gradient = ctx.gradient(fresh)
    by_bag = coefficients[torch.tensor([0, 0, 0, 1])]
    torch.testing.assert_close(gradient, (before * by_bag).sum(1).detach())


async def test_a_step_without_look_ups_changes_nothing(both: Both) -> None:
    ps, _ = both
    items = await zeros(ps)
    async with ps.context() as ctx:
        rows = await items(torch.empty(0, 3, dtype=torch.int64))
        assert rows.shape == (0, 3, 2)
        bags = await items.bag(IDS[:0], torch.tensor([0, 0]))
        assert torch.equal(bags, torch.zeros(2, 2))
        await ctx.backward(rows.sum() + bags.sum())
        assert set((await items.step(ctx)).values()) == {0}
    assert await items.size() == 0


async def test_a_scaler_of_losses_works_over_all_owners(both: Both) -> None:
    ps, _ = both
    items, scaler = await zeros(ps), torch.amp.GradScaler("cpu")
    for factor, expected in ((1.0, 1), (math.inf, None)):
        async with ps.context() as ctx:
            await ctx.backward(scaler.scale((await items(IDS)).sum() * factor))
            found = await items.optimizer.step(ctx, scaler)
            assert (None if found is None else max(found.values())) == expected
        scaler.update()
    assert await values(items) == [-2, -1, -2, -1] and scaler.get_scale() == 2.0**15


async def test_a_second_backward_needs_a_retained_graph(both: Both) -> None:
    ps, _ = both
    items = await zeros(ps)
    for retain in (True, False):
        for look_up in (items, lambda ids: items.bag(ids, torch.tensor([0, 1]), per_sample_weights=torch.ones(4))):
            async with ps.context() as ctx:
                loss = (await look_up(IDS)).sum()
                await ctx.backward(loss, retain_graph=retain)
                if retain:
                    await ctx.backward(loss)
                    await items.step(ctx)
                else:
                    with pytest.raises(RuntimeError, match="a second time"):
                        await ctx.backward(loss)
    assert await values(items) == [-8, -4, -8, -4]


async def test_what_a_pass_keeps_of_look_ups_is_bounded(start_owner: StartOwner) -> None:
    owner = await start_owner("ps0", limits=Limits(max_context_bytes=1 << 20))
    ids, offsets = torch.arange(8192), torch.zeros(1, dtype=torch.int64)
    async with tc.connect(owner.address) as ps:
        items = await zeros(ps)
        async with ps.context():
            with pytest.raises(tc.errors.OverloadedError, match="max_context_bytes"):
                for _ in range(40):
                    # What the answers hold is small: the keys of the rows are kept for the backward.
                    await items.bag(ids, offsets)
        await until(lambda: owner.engine.held.nbytes == 0)
        await add(ps, items)
