"""Handles of objects and modules: they offer what the object offers, and keep options of their own."""

from __future__ import annotations

import pytest
import torch

from ps_wire.errors import InvalidArgumentError, UnknownNameError
from ps_wire.refs import Ref
from ps_wire.v1.frames_pb2 import Reply
from tests.trainer_client.handles.answering import answer_call, info_of, module, thing
from tests.trainer_client.scripted_owner import Stream, decoded, encoded, opened
from trainer_client.handles.handles import RemoteModule, RemoteObject, handle_from


async def method_called(stream: Stream) -> str:
    """The method that the next request calls, answered with None."""
    frame = await stream.request()
    await answer_call(stream, frame, None)
    return frame.request.call.method


async def test_an_object_with_a_forward_is_a_module() -> None:
    async with opened() as (session, _, _):
        counter = handle_from(session, info_of("add", name="counter"))
        assert type(counter) is RemoteObject
        assert (counter.name, counter.class_name, counter.methods) == ("counter", "models.Thing", ("add",))
        assert type(handle_from(session, info_of("forward"))) is RemoteModule


async def test_methods_of_the_object_are_methods_of_the_handle() -> None:
    async with opened() as (session, stream, _):
        counter = thing(session, "add", "reset")
        pending = counter.add(1, times=2)
        frame = await stream.request()
        assert frame.request.call.method == "add"
        assert decoded(frame.request.call.args, b"") == (1,)
        assert decoded(frame.request.call.kwargs, b"") == {"times": 2}
        await answer_call(stream, frame, 3)
        assert await pending == 3
        assert {"add", "reset", "call"} <= set(dir(counter))


async def test_a_method_that_is_not_offered_is_an_attribute_error() -> None:
    async with opened() as (session, stream, _):
        counter = thing(session, "add")
        with pytest.raises(AttributeError, match=r"models\.Thing offers no 'remove', only add"):
            _ = counter.remove
        empty, hidden = thing(session), thing(session, "_hidden")
        with pytest.raises(AttributeError, match="only none"):
            _ = empty.add
        assert not hasattr(hidden, "_hidden")
        await stream.nothing_more()


async def test_a_result_may_stay_on_the_owner() -> None:
    async with opened() as (session, stream, _):
        thing(session, "add").remote("add", 1)
        request = (await stream.request()).request.call
        assert (request.method, request.keep) == ("add", True)


async def test_options_belong_to_the_handle_that_has_them() -> None:
    async with opened() as (session, stream, _):
        counter = thing(session, "add")
        patient = counter.options(timeout=7.0)
        both = patient.options(seed=5)
        assert patient == counter and patient is not counter
        for handle, seconds, seed in ((both, 7.0, 5), (patient, 7.0, None), (counter, 60.0, None)):
            handle.add()
            request = (await stream.request()).request
            assert request.timeout_seconds == pytest.approx(seconds, abs=1.0)
            assert (request.call.numerics.seed == 5) is (seed == 5)


async def test_options_of_a_handle_keep_its_object_alive() -> None:
    async with opened() as (session, stream, _):
        counter = thing(session, "add")
        object_id = counter.ref.object_id
        other = counter.options(seed=1)
        del counter
        await stream.nothing_more()
        del other
        assert list((await stream.request()).request.release.object_ids) == [object_id]


# Modules


async def test_a_module_is_called_like_the_module_itself() -> None:
    async with opened() as (session, stream, _):
        net = module(session)
        first, second = net(torch.ones(1)), net.forward(torch.ones(1))
        assert [await method_called(stream) for _ in range(2)] == ["", ""]
        assert (await first, await second) == (None, None)


async def test_the_mode_belongs_to_the_handle() -> None:
    async with opened() as (session, stream, _):
        net = module(session)
        other = net.options(seed=1)
        assert net.eval() is net
        for handle in (net, other):
            handle(1)
        assert [(await stream.request()).request.call.training for _ in range(2)] == [False, True]
        net.train()(1)
        assert (await stream.request()).request.call.training
        net.train(False)(1)
        assert not (await stream.request()).request.call.training


async def test_parameters_are_named_in_the_order_of_the_module() -> None:
    async with opened() as (session, _, _):
        net = module(session, "layers.0.weight", "bias")
        names = [name for name, _ in net.named_parameters()]
        assert names == ["layers.0.weight", "bias"]
        weight, bias = net.parameters()
        assert weight == net.parameter("layers.0.weight") and weight != bias
        assert (weight.name, weight.ref) == ("layers.0.weight", net.ref._replace(parameter="layers.0.weight"))
        assert (weight.shape, weight.dtype, weight.requires_grad) == (torch.Size([2]), torch.float32, True)
        assert str(list(weight.shape)) in repr(weight)
        with pytest.raises(UnknownNameError, match="has no parameter 'scale'"):
            net.parameter("scale")


async def test_a_parameter_keeps_its_module_alive() -> None:
    async with opened() as (session, stream, _):
        net = module(session, "weight")
        object_id = net.ref.object_id
        weight = net.parameter("weight")
        del net
        await stream.nothing_more()
        del weight
        assert list((await stream.request()).request.release.object_ids) == [object_id]


async def test_a_module_is_frozen_once_the_owner_has_done_it() -> None:
    async with opened() as (session, stream, _):
        net = module(session, "weight", "bias")
        weight = net.parameter("weight")
        pending = net.requires_grad_(False)
        frame = await stream.request()
        request = frame.request.set_requires_grad
        assert [Ref.from_message(each) for each in request.targets] == [net.ref]
        assert not request.requires_grad
        assert weight.requires_grad, "it is not known yet"
        await stream.answer(frame.number, set_requires_grad=Reply().set_requires_grad)
        assert await pending is net
        assert not any(each.requires_grad for each in (weight, *net.parameters()))


async def test_a_parameter_that_cannot_be_trained_stays_as_it_is() -> None:
    async with opened() as (session, stream, _):
        net = module(session, "weight", "bias")
        weight = net.parameter("weight")
        pending = weight.requires_grad_(False)
        frame = await stream.request()
        assert [Ref.from_message(each) for each in frame.request.set_requires_grad.targets] == [weight.ref]
        await stream.refuse(frame.number, InvalidArgumentError("it holds integers"))
        with pytest.raises(InvalidArgumentError, match="integers"):
            await pending
        assert weight.requires_grad


# States


async def test_a_state_comes_here() -> None:
    async with opened() as (session, stream, _):
        net = module(session, "weight")
        pending = net.state_dict()
        frame = await stream.request()
        assert Ref.from_message(frame.request.state.target) == net.ref
        reply = Reply()
        payload = encoded(reply.state.state, {"weight": torch.tensor([1.0, 2.0])})
        await stream.answer(frame.number, payload, state=reply.state)
        state = await pending
        assert list(state) == ["weight"] and state["weight"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("strict", [True, False])
async def test_a_state_is_set_and_says_which_keys_do_not_fit(strict: bool) -> None:
    async with opened() as (session, stream, _):
        pending = module(session, "weight").load_state_dict({"weight": torch.tensor([1.0])}, strict)
        frame = await stream.request()
        request = frame.request.load_state
        assert request.strict is strict
        assert decoded(request.state, stream.payload)["weight"].tolist() == [1.0]
        reply = Reply()
        reply.load_state.missing_keys.append("bias")
        reply.load_state.unexpected_keys.append("weight")
        await stream.answer(frame.number, load_state=reply.load_state)
        assert await pending == (["bias"], ["weight"])


async def test_a_state_must_be_a_dict() -> None:
    async with opened() as (session, stream, _):
        net = module(session)
        with pytest.raises(InvalidArgumentError, match="a state is a dict, not a list"):
            net.load_state_dict([1.0])  # type: ignore[arg-type]
        await stream.nothing_more()
