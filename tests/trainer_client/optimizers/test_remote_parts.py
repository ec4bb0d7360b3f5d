"""The part of an optimizer on an owner: its requests name the optimizer and the pass, and its answers come back."""

from __future__ import annotations

import pytest
import torch

from ps_wire.refs import Ref
from ps_wire.v1.frames_pb2 import Reply
from tests.trainer_client.optimizers.parts_on_owners import answer_state, asked, places
from tests.trainer_client.scripted_owner import decoded
from tests.trainer_client.scripted_passes import new_context


async def test_unscaling_reports_the_result_of_owners() -> None:
    async with places() as (here, _):
        part = here.part()
        pending = part.unscale(new_context(), 0.25)
        frame = await asked(here, "unscale")
        assert Ref.from_message(frame.request.unscale.optimizer) == part.handle.ref
        assert frame.request.unscale.factor == 0.25
        reply = Reply()
        reply.unscale.present, reply.unscale.non_finite = True, False
        await here.stream.answer(frame.number, unscale=reply.unscale)
        assert await pending == (True, False)


@pytest.mark.parametrize("group", [None, 0, 2])
async def test_options_are_set_for_one_group_or_all(group: int | None) -> None:
    async with places() as (here, _):
        pending = here.part().set_options(group, {"lr": 0.1})
        frame = await asked(here, "set_options")
        request = frame.request.set_options
        assert request.HasField("group") is (group is not None)
        assert request.group == (group or 0)
        assert decoded(request.options, here.stream.payload) == {"lr": 0.1}
        await here.stream.answer(frame.number, set_options=Reply().set_options)
        assert await pending is None


async def test_a_state_is_read_and_set() -> None:
    async with places() as (here, _):
        part = here.part()
        state = {"state": {0: {"momentum_buffer": torch.tensor([1.0])}}, "param_groups": []}
        reading = part.state_dict()
        assert await answer_state(here, state) == part.handle.ref
        assert (await reading)["state"][0]["momentum_buffer"].tolist() == [1.0]
        setting = part.load_state_dict(state)
        frame = await asked(here, "load_state")
        assert Ref.from_message(frame.request.load_state.target) == part.handle.ref
        sent = decoded(frame.request.load_state.state, here.stream.payload)
        assert sent["state"][0]["momentum_buffer"].tolist() == [1.0]
        await here.stream.answer(frame.number, load_state=Reply().load_state)
        await setting
