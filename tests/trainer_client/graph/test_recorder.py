"""Tests that gradients of outputs are sent to the owner, and those of inputs are returned."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from ps_wire.errors import ContextEndedError, RemoteError
from tests.custom_functions import NoGradient
from tests.trainer_client.scripted_owner import TRAINER, opened
from tests.trainer_client.scripted_passes import carry_back, give, leaf, new_context, posted, recorded
from trainer_client.graph.nodes import WayBack


async def test_a_backward_names_its_pass_and_call() -> None:
    async with opened() as (session, stream, _):
        context = new_context()
        (output,) = recorded(context, session)
        backward = context.backward((output * 3).sum())
        frame, gradients = await posted(stream)
        request = frame.request.backward
        assert (request.context.trainer, request.context.number) == (TRAINER, 1)
        assert (request.call, list(request.outputs), request.backward, request.after) == (1, [0], 1, 0)
        assert [gradient.tolist() for gradient in gradients] == [[3.0, 3.0]]
        await give(stream, frame.number)
        await backward


async def test_gradients_of_inputs_reach_the_leaves_behind_them() -> None:
    async with opened() as (session, stream, _):
        context, a, b = new_context(), leaf(1.0, 2.0), leaf(3.0)
        (output,) = recorded(context, session, a * 10, torch.ones(1), b)
        backward = context.backward(output.sum())
        await carry_back(stream, torch.tensor([1.0, 2.0]), torch.tensor([5.0]))
        await backward
        found = {id(parameter): gradient.tolist() for parameter, gradient in context.local.items()}
        assert found == {id(a): [10.0, 20.0], id(b): [5.0]}


async def test_an_input_without_a_gradient_gets_none() -> None:
    async with opened() as (session, stream, _):
        context, a, b = new_context(), leaf(1.0), leaf(1.0)
        (output,) = recorded(context, session, a, b)
        backward = context.backward(output.sum())
        await carry_back(stream, None, torch.tensor([2.0]))
        await backward
        assert context.gradient(a) is None
        assert context.gradient(b) is not None


async def test_only_gradients_of_used_outputs_are_sent() -> None:
    async with opened() as (session, stream, _):
        context = new_context()
        outputs = recorded(context, session, outputs=[torch.ones(1), torch.ones(2), torch.ones(3)])
        backward = context.backward(outputs[0].sum() + 2 * outputs[2].sum())
        frame, gradients = await posted(stream)
        assert list(frame.request.backward.outputs) == [0, 2]
        assert [gradient.tolist() for gradient in gradients] == [[1.0], [2.0, 2.0, 2.0]]
        await give(stream, frame.number)
        await backward


async def test_a_call_whose_outputs_are_not_used_is_not_asked() -> None:
    async with opened() as (session, stream, _):
        context, a = new_context(), leaf(1.0)
        recorded(context, session, a)
        (used,) = recorded(context, session, a)
        backward = context.backward(used.sum())
        frame = await carry_back(stream, torch.ones(1))
        assert frame.request.backward.call == 2
        await backward
        await stream.nothing_more()


async def test_positions_are_the_places_among_all_tensors_of_the_result() -> None:
    async with opened() as (session, stream, _):
        context = new_context()
        (output,) = context.record(session, []).receive([torch.ones(2)], [4])
        backward = context.backward(output.sum())
        assert list((await carry_back(stream)).request.backward.outputs) == [4]
        await backward


async def test_calls_that_do_not_depend_on_each_other_are_posted_before_any_answer() -> None:
    async with opened() as (session, stream, _):
        context, a = new_context(), leaf(1.0)
        (first,), (second,) = recorded(context, session, a), recorded(context, session, a)
        backward = context.backward((first + second).sum())
        frames = [(await posted(stream))[0] for _ in range(2)]
        assert {(f.request.backward.call, f.request.backward.after) for f in frames} == {(1, 2), (2, 0)}
        for frame in frames:
            await give(stream, frame.number, torch.tensor([1.0]))
        await backward
        gradient = context.gradient(a)
        assert gradient is not None and gradient.tolist() == [2.0]


async def test_a_call_on_anothers_output_waits_for_its_gradient() -> None:
    async with opened() as (session, stream, _):
        context, a = new_context(), leaf(1.0)
        (inner,) = recorded(context, session, a)
        (outer,) = recorded(context, session, inner)
        backward = context.backward(outer.sum())
        frame = await carry_back(stream, torch.tensor([2.0, 3.0]))
        assert frame.request.backward.call == 2
        frame, gradients = await posted(stream)
        assert (frame.request.backward.call, gradients[0].tolist()) == (1, [2.0, 3.0])
        await give(stream, frame.number, torch.tensor([7.0]))
        await backward


async def test_results_kept_on_the_owner_are_propagated_through() -> None:
    async with opened() as (session, stream, _):
        context, a = new_context(), leaf(1.0)
        (token,) = context.record(session, [a]).receive([], [], kept=1)
        (output,) = context.record(session, [], [token]).receive([torch.ones(2)], [0])
        backward = context.backward(output.sum())
        assert (await carry_back(stream)).request.backward.call == 2
        frame, gradients = await posted(stream)
        assert (frame.request.backward.call, list(frame.request.backward.outputs), gradients) == (1, [], [])
        await give(stream, frame.number, torch.tensor([4.0]))
        await backward
        gradient = context.gradient(a)
        assert gradient is not None and gradient.tolist() == [4.0]


async def test_outputs_have_a_history_even_where_the_answer_is_taken_without_grad() -> None:
    async with opened() as (session, _, _owner):
        context = new_context()
        with torch.no_grad():
            (output,) = recorded(context, session)
        assert output.requires_grad


async def test_an_error_of_the_owner_is_raised_by_the_backward() -> None:
    async with opened() as (session, stream, _):
        context, a = new_context(), leaf(1.0)
        (output,) = recorded(context, session, a)
        backward = context.backward(output.sum())
        await stream.refuse((await posted(stream))[0].number, RemoteError("no gradient", "builtins.RuntimeError"))
        with pytest.raises(RemoteError, match="no gradient"):
            await backward
        assert context.gradient(a) is None


async def test_an_error_of_a_call_without_inputs_is_raised_too() -> None:
    async with opened() as (session, stream, _):
        context = new_context()
        (output,) = recorded(context, session)
        backward = context.backward(output.sum())
        await stream.refuse((await posted(stream))[0].number, RemoteError("no gradient"))
        with pytest.raises(RemoteError, match="no gradient"):
            await backward


async def test_the_graph_may_be_kept_for_another_backward() -> None:
    async with opened() as (session, stream, _):
        context, a = new_context(), leaf(1.0)
        (output,) = recorded(context, session, a)
        told = []
        for retain_graph in (True, False):
            backward = context.backward(output.sum(), retain_graph=retain_graph)
            request = (await carry_back(stream, torch.tensor([1.0]))).request.backward
            told.append((request.backward, request.retain_graph))
            await backward
        assert told == [(1, True), (2, False)]


async def test_torchs_own_backward_is_refused() -> None:
    async with opened() as (session, _, _owner):
        context = new_context()
        (output,) = recorded(context, session)
        with pytest.raises(RuntimeError, match=r"ctx\.backward\(loss\)"):
            output.sum().backward()


async def test_torchs_own_backward_after_the_end_says_that_the_context_is_over() -> None:
    async with opened() as (session, _, _owner):
        context = new_context()
        (output,) = recorded(context, session)
        context.end()
        with pytest.raises(ContextEndedError):
            output.sum().backward()


class Hook:
    """Lives as long as the node of the graph at which it is registered."""

    def __call__(self, gradient: torch.Tensor) -> None:
        pass


async def test_a_graph_that_is_dropped_keeps_nothing_alive() -> None:
    async with opened() as (session, _, _owner):
        context, a, hook = new_context(), leaf(1.0), Hook()
        computed = a * 2
        computed.register_hook(hook)
        outputs = recorded(context, session, computed)
        gone = weakref.ref(hook)
        gc.disable()
        try:
            del computed, hook
            assert gone() is not None
            del outputs
            assert gone() is None
        finally:
            gc.enable()


async def test_the_latest_call_is_propagated_first_in_whichever_order_answers_were_taken() -> None:
    async with opened() as (session, stream, _):
        context, a = new_context(), leaf(1.0)
        first, second = context.record(session, [a]), context.record(session, [a])
        (late,) = second.receive([torch.ones(2)], [0])
        (early,) = first.receive([torch.ones(2)], [0])
        backward = context.backward((early + late).sum())
        frames = [(await posted(stream))[0] for _ in range(2)]
        assert [frame.request.backward.call for frame in frames] == [2, 1]
        for frame in frames:
            await give(stream, frame.number, torch.tensor([1.0]))
        await backward


async def test_a_call_to_which_no_gradient_comes_is_not_waited_for() -> None:
    async with opened() as (session, stream, _):
        context, a = new_context(), leaf(1.0)
        (first,), (second,) = recorded(context, session, a), recorded(context, session, a)
        # Torch runs the local operation that was made last first.
        doubled = first * 2
        backward = context.backward((doubled + NoGradient.apply(second)).sum())
        request = (await carry_back(stream, torch.tensor([1.0]))).request.backward
        assert (request.call, request.after) == (1, 0)
        await backward
        await stream.nothing_more()


async def test_an_engine_that_goes_on_in_another_thread_raises_before_gradients_are_lost() -> None:
    async with opened() as (session, _, _):
        call = WayBack(new_context(), session, 1, (1,), [leaf(1.0)])
        assert call.take_input_gradients() == [None]
        call.held = True
        with pytest.raises(RuntimeError, match="in another thread than that of the backward"):
            call.take_input_gradients()
