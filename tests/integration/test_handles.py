"""Tests handles: their objects and lifetimes, how they are sent, and what they refuse."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_service.server import Server
from ps_wire.limits import Limits
from tests.integration.support import AFFINE, COUNTER, MODELS, Cuttable, in_memory, serving, until
from tests.integration.wire_models import SlowToMake
from trainer_client.transport.grpc_stream import GrpcConnector


async def test_trainers_that_ask_at_the_same_moment_get_the_same_object(ps: tc.Client, ps2: tc.Client) -> None:
    asked = [client.create(COUNTER, 5, name="shared") for client in (ps, ps2) * 20]
    handles = await asyncio.gather(*asked)
    assert len(set(handles)) == 1
    assert len(set(await asyncio.gather(*(handle.add() for handle in handles)))) == 40
    status = await ps.status()
    assert [(each.name, each.references) for each in status.objects] == [("shared", 40)]


async def test_a_named_object_is_made_once_and_not_again_with_other_arguments(ps: tc.Client, ps2: tc.Client) -> None:
    await ps.module("torch.nn.Linear", 4, 3, name="net", seed=1, bias=False)
    others: list[tuple[tuple[int, int], dict[str, Any], str]] = [
        ((4, 2), {"bias": False, "seed": 1}, r"out_features=3, not 2\. Ask with the same arguments"),
        ((4, 3), {"bias": True, "seed": 1}, r"bias=False, not True\. "),
        ((4, 3), {"seed": 1}, r"bias=False, not True\. "),
        ((5, 3), {"bias": False, "seed": 2}, r"in_features=4, not 5, seed=1, not 2\. .*with attach\('net'\)"),
        ((4, 3), {"bias": False, "seed": 1, "device": "cpu"}, r"made with device=None, not 'cpu'\. "),
    ]
    for args, options, text in others:
        with pytest.raises(tc.errors.NameConflictError, match=r"'net' exists already: .*Linear, .*" + text):
            await ps2.module("torch.nn.Linear", *args, name="net", **options)
    with pytest.raises(tc.errors.NameConflictError, match=r"class='torch\.nn\..*Linear', not '.*Counter'"):
        await ps2.create(COUNTER, name="net")
    assert await ps2.attach("net") == await ps.module("torch.nn.Linear", 4, 3, name="net", seed=1, bias=False)


async def test_an_optimizer_with_another_option_is_told_which(ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 4, 3, name="net")
    await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    with pytest.raises(tc.errors.NameConflictError, match=r"made with lr=0\.1, not 0\.05\. .*set_options\(\), use it"):
        await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.05)
    with pytest.raises(
        tc.errors.NameConflictError, match=r"made with momentum=0, not 0\.9, reads='consistent', not 'inconsistent'\. "
    ):
        await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, momentum=0.9, reads="inconsistent")


async def test_other_tensors_are_other_arguments() -> None:
    async with serving() as owner, tc.connect(owner.address) as ps:
        shelf = await ps.create(f"{MODELS}.Shelf", torch.arange(4), name="shelf")
        assert await ps.create(f"{MODELS}.Shelf", torch.arange(4), name="shelf") == shelf
        with pytest.raises(tc.errors.NameConflictError, match=r"Shelf, made with other arguments\. "):
            await ps.create(f"{MODELS}.Shelf", torch.arange(1, 5), name="shelf")
        with pytest.raises(
            tc.errors.NameConflictError,
            match=r"things=\(a tensor of torch\.int64 \(4,\),\), not \(a tensor of torch\.int64 \(5,\),\)",
        ):
            await ps.create(f"{MODELS}.Shelf", torch.arange(5), name="shelf")


async def test_one_class_under_two_of_its_names_is_the_same_class(ps: tc.Client) -> None:
    by_short_name = await ps.module("torch.nn.Linear", 2, 2, name="net")
    assert await ps.module("torch.nn.modules.linear.Linear", 2, 2, name="net") == by_short_name
    assert await ps.module(torch.nn.Linear, 2, 2, name="net") == by_short_name


async def test_an_anonymous_object_goes_with_its_last_handle(ps: tc.Client, ps2: tc.Client) -> None:
    handle = await ps.create(COUNTER, 1)
    other = await ps2.attach(str(handle))
    assert [each.references for each in (await ps.status()).objects] == [2]
    del handle
    gc.collect()
    await until(ps, lambda status: [each.references for each in status.objects] == [1])
    assert await other.get() == 1
    text = str(other)
    del other
    gc.collect()
    await until(ps, lambda status: not status.objects)
    with pytest.raises(tc.errors.StaleHandleError, match="Ask for it again as at the beginning"):
        await ps.attach(text)


async def test_handles_that_share_a_reference_give_it_back_together(ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 2, 2)
    weight, patient = net.parameter("weight"), net.options(timeout=None)
    del net
    gc.collect()
    assert (await weight.to_here()).shape == (2, 2)
    assert (await patient(torch.ones(1, 2))).shape == (1, 2)
    del weight, patient
    gc.collect()
    await until(ps, lambda status: not status.objects)


async def test_a_handle_among_the_arguments_is_held_until_its_call_has_run(ps: tc.Client, owner: Server) -> None:
    counter = await ps.create(COUNTER, 7)
    call = (await ps.create(COUNTER)).look_at(counter)
    del counter
    gc.collect()
    assert await call == 7
    del call
    gc.collect()
    await until(ps, lambda status: not status.objects)
    assert len(owner.engine.registry) == 0


async def test_closing_frees_anonymous_objects_and_keeps_named_ones(owner: Server, ps: tc.Client) -> None:
    async with tc.connect(owner.address) as leaving:
        handles = [await leaving.create(COUNTER) for _ in range(3)]
        handles.append(await leaving.create(COUNTER, 3, name="stays"))
        assert len(owner.engine.registry) == 4
    await until(ps, lambda status: len(status.objects) == 1 and status.sessions == 1)
    stays = await ps.attach("stays")
    assert await stays.get() == 3
    assert [each.references for each in (await ps.status()).objects] == [1]


async def test_the_objects_of_a_lost_trainer_are_freed_with_its_lease() -> None:
    async with serving(Limits(lease_seconds=0.2)) as owner, tc.connect(owner.address) as watching:
        kept = await watching.create(COUNTER)
        line = Cuttable(GrpcConnector(owner.address))
        vanishing = await tc.connect(line, reconnect_timeout=0.0)
        held = [await vanishing.create(COUNTER) for _ in range(3)]
        async with vanishing.context():
            net = await vanishing.module(torch.nn.Linear, 2, 2)
            await net(torch.ones(1, 2))
            status = await watching.status()
            assert (len(status.objects), status.contexts, status.sessions) == (5, 1, 2)
            await line.cut()
            while (await watching.status()).sessions > 1:
                pass
        status = await watching.status()
        assert (len(status.objects), status.contexts) == (1, 0)
        assert await kept.get() == 0
        with pytest.raises(tc.errors.UnavailableError):
            await held[0].get()
        await vanishing.close()


async def test_an_object_whose_maker_left_before_it_was_made_is_freed() -> None:
    async with serving() as owner, tc.connect(owner.address) as watching:
        leaving = await tc.connect(owner.address)
        making = leaving.create(f"{MODELS}.SlowToMake")
        await asyncio.to_thread(SlowToMake.entered.acquire)
        await leaving.close()
        with pytest.raises(tc.errors.ClosedError):
            await making
        await until(watching, lambda status: status.sessions == 1)
        SlowToMake.go_on.release()
        await asyncio.to_thread(owner.engine.compute.close)
        assert len(owner.engine.registry) == 0


@pytest.mark.parametrize("how", ["cancelled", "too late"])
async def test_an_object_whose_creation_was_not_awaited_is_freed(how: str) -> None:
    async with in_memory() as owner, tc.connect(owner.connector()) as ps:
        making = ps.create(f"{MODELS}.SlowToMake", timeout=None if how == "cancelled" else 1.0)
        await asyncio.to_thread(SlowToMake.entered.acquire)
        if how == "cancelled":
            making.cancel()
        with pytest.raises(tc.errors.CancelledCallError if how == "cancelled" else tc.errors.DeadlineExceededError):
            await making
        await until(ps, lambda status: status.requests_in_flight == 0)
        SlowToMake.go_on.release()
        # The only other thread of the pool may be free before the constructor's, so wait for all of them.
        await asyncio.to_thread(owner.engine.compute.close)
        assert len(owner.engine.registry) == 0


async def test_handles_travel_as_arguments_at_the_top_and_in_containers() -> None:
    async with serving() as owner, tc.connect(owner.address) as ps:
        one, two = await ps.create(COUNTER, 1), await ps.create(COUNTER, 2)
        shelf = await ps.create(f"{MODELS}.Shelf")
        assert await shelf.look(one) == 1
        assert await shelf.look(arguments=two) == 2
        assert await shelf.look({"a": [one, (two, 5)], "b": {"c": one}}) == {"a": [1, (2, 5)], "b": {"c": 1}}
        kept = await ps.create(f"{MODELS}.Shelf", one, named=two)
        assert await kept.count() == 2


async def test_handles_come_back_from_calls(ps: tc.Client) -> None:
    counter = await ps.create(COUNTER)
    there = await counter.hand_out({"x": torch.arange(3), "y": [1]})
    assert isinstance(there, tc.RRef)
    here = await there.to_here()
    assert torch.equal(here["x"], torch.arange(3)) and here["y"] == [1]
    assert torch.equal((await counter.look_at(there))["x"], torch.arange(3))
    same = await counter.pass_on(there)
    assert same == there and hash(same) == hash(there) and same is not there
    assert [each.references for each in (await ps.status()).objects if each.class_name == "builtins.dict"] == [2]
    del there, same
    gc.collect()
    await until(ps, lambda status: len(status.objects) == 1)


async def test_handles_in_the_containers_of_a_result_are_counted_one_by_one() -> None:
    async with serving() as owner, tc.connect(owner.address) as ps:
        shelf = await ps.create(f"{MODELS}.Shelf")
        layer = await ps.attach(str(first := await shelf.new_layer(3)))
        assert isinstance(layer, tc.RemoteModule) and layer.class_name == "torch.nn.modules.linear.Linear"
        assert (await layer(torch.ones(1, 3))).shape == (1, 3)
        result = await shelf.layers()
        small, (large,) = result["all"]
        assert (await (await ps.attach(str(large))).state_dict())["weight"].shape == (2, 2)
        text = str(small)
        del small, result
        gc.collect()
        await until(ps, lambda status: len(status.objects) == 3)
        with pytest.raises(tc.errors.StaleHandleError):
            await ps.attach(text)
        assert first == layer


async def test_remote_keeps_the_result_on_the_owner(ps: tc.Client) -> None:
    net = await ps.module(AFFINE, 2, 3)
    kept = await net.remote("forward", torch.ones(4, 2))
    assert isinstance(kept, tc.RRef) and not isinstance(kept, torch.Tensor)
    assert torch.equal(await kept.to_here(), await net(torch.ones(4, 2)))
    again = await net.remote("both", torch.ones(4, 2), scale=2.0)
    assert (await again.to_here())["shape"] == (4, 3)
    called = await net.remote("called")
    assert await called.to_here() == 3


async def test_a_kept_result_does_not_change_with_its_module(ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Identity")
    value = torch.zeros(3)
    kept = await net.remote("forward", value)
    value += 1
    assert torch.equal(await kept.to_here(), torch.zeros(3))


async def test_parameters_have_handles_of_their_own() -> None:
    async with serving() as owner, tc.connect(owner.address) as ps:
        net = await ps.module(torch.nn.LSTM, 3, 4)
        local = torch.nn.LSTM(3, 4)
        found = dict(net.named_parameters())
        assert {name: (tuple(p.shape), p.dtype) for name, p in found.items()} == {
            name: (tuple(p.shape), p.dtype) for name, p in local.named_parameters()
        }
        assert [parameter.name for parameter in net.parameters()] == list(found)
        state = await net.state_dict()
        bias = net.parameter("bias_ih_l0")
        assert torch.equal(await bias.to_here(), state["bias_ih_l0"])
        shelf = await ps.create(f"{MODELS}.Shelf")
        assert await shelf.norm(bias) == pytest.approx(float(state["bias_ih_l0"].norm()))
        with pytest.raises(tc.errors.UnknownNameError, match="has no parameter 'bias_9'"):
            net.parameter("bias_9")
        attached = await ps.attach(str(bias))
        assert attached.ref.object_id == net.ref.object_id


async def test_a_module_stays_where_it_is(ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 2, 2)
    with pytest.raises(tc.errors.InvalidArgumentError, match=r"stays where it is.*state_dict\(\)"):
        await net.to_here()


async def test_a_handle_is_shared_as_text(ps: tc.Client, ps2: tc.Client) -> None:
    counter = await ps.create(COUNTER, 3)
    text = str(counter)
    assert text == f"{COUNTER} on ps0 (ps://ps0/{counter.ref.object_id})" and len(counter.ref.object_id) == 32
    assert await ps2.attach(str(counter.ref)) == counter
    there = await ps2.attach(text)
    assert there == counter and await there.add(4) == 7 and await counter.get() == 7
    del counter
    gc.collect()
    await until(ps, lambda status: [each.references for each in status.objects] == [1])
    assert await there.get() == 7


async def test_delete_makes_handles_stale_and_takes_the_optimizers_along(ps: tc.Client, ps2: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 2, 2, name="net")
    opt = await ps2.optimizer(torch.optim.Adam, net.parameters())
    await ps2.scheduler(torch.optim.lr_scheduler.StepLR, opt, 1)
    await ps2.delete("net")
    for request in (net(torch.ones(1, 2)), net.state_dict(), net.parameter("bias").to_here(), opt.state_dict()):
        with pytest.raises(tc.errors.StaleHandleError, match="was deleted"):
            await request
    status = await ps.status()
    assert not status.objects and not status.optimizers
    with pytest.raises(tc.errors.UnknownNameError, match="hosts nothing under the name 'net'"):
        await ps.delete("net")
    again = await ps.module("torch.nn.Linear", 2, 5, name="net")
    assert again != net and again.parameter("weight").shape == (5, 2)


async def test_only_forward_and_marked_methods_can_be_called() -> None:
    async with serving() as owner, tc.connect(owner.address) as ps:
        net, shelf = await ps.module(AFFINE, 2, 2), await ps.create(f"{MODELS}.Shelf")
        assert net.methods == ("forward", "both", "called") and "called" in dir(net)
        refused = [
            "private",
            "__init__",
            "__reduce__",
            "__getattribute__",
            "state_dict",
            "to",
            "requires_grad_",
        ]
        for method in refused:
            with pytest.raises(tc.errors.NotAllowedError, match=r"may not be called remotely; mark it with @remote"):
                await net.call(method)
        for method in ("__call__", "__init_subclass__", "__class__", "__reduce_ex__"):
            with pytest.raises(tc.errors.NotAllowedError):
                await shelf.call(method)
        for method in ("no_such_method", "weight", "__dict__", "both.__globals__", "", "for ward", "\0"):
            with pytest.raises((tc.errors.UnknownMethodError, tc.errors.NotAllowedError), match=r"look|forward"):
                await (net if method else shelf).call(method)
        with pytest.raises(AttributeError, match="offers no 'private', only forward, both, called"):
            net.private  # noqa: B018


async def test_an_owner_without_a_directory_refuses_handles_of_others(pair: tc.Client) -> None:
    here, there = await pair.create(COUNTER, owner="ps0"), await pair.create(COUNTER, owner="ps1")
    with pytest.raises(tc.errors.ForeignHandleError, match="belongs to owner 'ps1', which cannot be found from here"):
        await here.look_at([there])
    with pytest.raises(tc.errors.ForeignHandleError, match="start this owner with --directory"):
        await pair.create(COUNTER, there, owner="ps0")
    with pytest.raises(
        tc.errors.UnknownNameError, match=r"none of the owners known here \(ps0, ps1\) can tell where 'ps7' is"
    ):
        await pair.attach(f"ps://ps7/{'0' * 32}")
    with pytest.raises(tc.errors.UnknownNameError, match="not connected to an owner 'ps7'"):
        pair.create(COUNTER, owner="ps7")


async def test_a_handle_is_not_pickled_or_copied(ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 2, 2)
    for handle in (net, net.parameter("weight"), await ps.create(COUNTER)):
        for way in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=r"cannot be pickled: send str\(handle\)"):
                way(handle)


async def test_a_seed_makes_the_same_module_as_locally_and_leaves_the_generator_alone(ps: tc.Client) -> None:
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    nets = await asyncio.gather(*(ps.module("torch.nn.Linear", 3, 3, seed=seed) for seed in (11, 12, 11)))
    assert torch.equal(torch.random.get_rng_state(), before)
    first, second, third = [await net.state_dict() for net in nets]
    torch.manual_seed(11)
    local = torch.nn.Linear(3, 3).state_dict()
    assert torch.equal(first["weight"], local["weight"]) and torch.equal(first["bias"], local["bias"])
    assert torch.equal(first["weight"], third["weight"]) and not torch.equal(first["weight"], second["weight"])


async def test_a_freed_anonymous_optimizer_leaves_nothing_behind(owner: Server, ps: tc.Client) -> None:
    named = await ps.module("torch.nn.Linear", 2, 2, name="stays")
    mine = await ps.module("torch.nn.Linear", 2, 2)
    opt = await ps.optimizer(torch.optim.Adam, [*named.parameters(), *mine.parameters()])
    async with ps.context() as ctx:
        await ctx.backward((await named(await mine(torch.ones(1, 2)))).sum())
        await opt.step(ctx)
    del opt, mine
    gc.collect()
    # The thread that ran the last request may still hold the optimizer for a moment.
    stays = owner.engine.registry.named("stays")
    await until(ps, lambda status: len(status.objects) == 1 and not status.optimizers and not list(stays.dependents))
