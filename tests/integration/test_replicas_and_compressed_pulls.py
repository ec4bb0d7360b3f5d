"""Tests of compressed pulls: what arrives is what the codec makes of the owner's values, and only what has changed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_wire.codec.values import Encoder
from ps_wire.compression.choice import Choice
from ps_wire.compression.registry import decode, encode
from ps_wire.runtime.noop import noop
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.frames_pb2 import Request
from tests.integration.replica_models import Net, Parametrized, Wide
from tests.integration.test_replicas import images, joined, same
from tests.training import hosted_value

X = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
CODECS = [tc.codecs.BF16(), tc.codecs.FP16(), tc.codecs.Int8(64), tc.codecs.Zstd()]


def rounded(codec: Any, value: torch.Tensor) -> torch.Tensor:
    return decode(encode(codec, value.detach()), value.detach())


@pytest.mark.parametrize("codec", CODECS, ids=str)
async def test_pulls_and_pushes_bring_what_the_codec_makes_of_the_values(codec: Any) -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(Wide, name="net", seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, momentum=0.9)
        replica = await net.replica(compress_pull=codec)
        for _ in range(3):
            replica(X).square().mean().backward()
            assert (await replica.push(opt)).staleness == 0  # type: ignore[union-attr]
            for mine, theirs in zip(replica.parameters(), hosted_value(server, net).parameters(), strict=True):
                # The biases are small.
                assert torch.equal(mine, rounded(codec, theirs) if theirs.numel() >= 1024 else theirs)
                assert theirs.numel() < 1024 or torch.equal(mine, theirs) == (codec == tc.codecs.Zstd())
        assert await replica.pull() == 0
        state = await net.state_dict()
        state["layers.0.weight"][0, 0] = 3.0
        await net.load_state_dict(state)
        assert await replica.pull() == 8


@pytest.mark.parametrize(("codec", "most"), [(tc.codecs.BF16(), 0.52), (tc.codecs.Int8(), 0.28)], ids=str)
async def test_fewer_bytes_arrive(codec: Any, most: float) -> None:
    async with joined() as (_, (ps,)):
        net = await ps.module(Wide, 256, name="net", seed=1)
        sizes = []
        for each in (None, codec):
            replica = await net.replica(compress_pull=each)
            before = replica.exchange.tensors.take

            def take(number: int, reply: pb.PullReply, payload: Any, before: Any = before) -> int:
                sizes.append(payload.nbytes)
                return int(before(number, reply, payload))

            replica.exchange.tensors.take = take  # type: ignore[method-assign]
            replica.exchange.tensors._marks = [0] * 8
            assert await replica.pull() == 8
        assert sizes[1] < most * sizes[0]


async def test_codecs_are_chosen_by_name_and_all_kinds_of_parameters_arrive() -> None:
    async with joined() as (server, (ps,)):
        codecs = Choice({"conv.*": tc.codecs.BF16(), "norm.*": None, "default": tc.codecs.Zstd()}, min_numel=0)
        net = await ps.module(Net, name="net", seed=1)
        replica = await net.replica(compress_pull=codecs)
        for name, mine in replica.module.named_parameters():
            theirs = hosted_value(server, net).get_parameter(name)
            wanted = theirs.bfloat16().float() if name.startswith("conv") else theirs
            assert torch.equal(mine, wanted) and mine.stride() == theirs.stride()
        assert torch.equal(replica.module.scale, torch.tensor(0.5))
        odd = await ps.module(Parametrized, seed=1)
        for codec in CODECS:
            other = await odd.replica(compress_pull=Choice(codec, min_numel=0))
            assert (await odd.state_dict()).keys() == other.module.state_dict().keys()
            assert all(bool(torch.isfinite(each).all()) for each in other.parameters())
        replica(images(1)).sum().backward()


@pytest.mark.parametrize("codec", [tc.codecs.FP16(), tc.codecs.Int8()], ids=str)
@pytest.mark.parametrize("value", [math.inf, math.nan, 1e6])
async def test_values_that_a_codec_cannot_express_are_sent_as_they_are(codec: Any, value: float) -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(Wide, name="net", seed=1)
        state = await net.state_dict()
        state["layers.1.weight"][3, 4] = value
        await net.load_state_dict(state)
        replica = await net.replica(compress_pull=codec)
        found, wanted = (each.layers[1].weight for each in (replica.module, hosted_value(server, net)))
        torch.testing.assert_close(found[3, 4], torch.tensor(value), equal_nan=True)
        assert torch.isfinite(found).sum() == torch.isfinite(wanted).sum()
        assert not torch.equal(replica.module.layers[0].weight, hosted_value(server, net).layers[0].weight)


@pytest.mark.parametrize(
    "codec", [tc.codecs.TopK(0.5), tc.codecs.RandomK(0.5), tc.codecs.Sign(), tc.codecs.PowerSGD()], ids=str
)
async def test_codecs_that_leave_the_rest_to_later_messages_are_refused_on_both_sides(codec: Any) -> None:
    async with joined() as (_, (ps,)):
        net = await ps.module(Wide, 8, name="net", seed=1)
        for choice in (codec, {"layers.0.*": codec}):
            with pytest.raises(tc.errors.InvalidArgumentError, match="would be lost, unless the owner kept a copy"):
                net.replica(compress_pull=choice)
        request = pb.PullRequest(target=net.ref.to_message(), reads=pb.READS_CONSISTENT, codec_of=[1] * 8)
        Encoder(None).encode_into(request.codecs, [[codec.name, codec.parameters()]])
        with pytest.raises(tc.errors.InvalidArgumentError, match="would be lost, unless the owner kept a copy"):
            await net.session.submit(Request(pull=request), None, noop)


@pytest.mark.parametrize(
    ("codecs", "codec_of", "why"),
    [
        ([["bf16", {}]], [1] * 7, "a number for each of 8 parameters"),
        ([["bf16", {}]], [2] * 8, "codec 2 of 1"),
        ([["bf16", {}]] * 65, [1] * 8, "at most 64 codecs"),
        ([["bf16", {"x": 1}]], [1] * 8, "has the parameters"),
        ([["bf16"]], [1] * 8, "described by its name"),
        ([[1, {}]], [1] * 8, "described by its name"),
        ([["no such", {}]], [1] * 8, "no codec 'no such'"),
        ("bf16", [1] * 8, "at most 64 codecs"),
    ],
)
async def test_descriptions_of_codecs_that_make_no_sense_are_refused(
    codecs: Any, codec_of: list[int], why: str
) -> None:
    async with joined() as (_, (ps,)):
        net = await ps.module(Wide, 8, name="net", seed=1)
        request = pb.PullRequest(target=net.ref.to_message(), reads=pb.READS_CONSISTENT, codec_of=codec_of)
        Encoder(None).encode_into(request.codecs, codecs)
        with pytest.raises(tc.errors.InvalidArgumentError, match=why):
            await net.session.submit(Request(pull=request), None, noop)


async def test_training_with_rounded_parameters_reaches_nearly_the_same_loss() -> None:
    losses = []
    for codec in (None, tc.codecs.BF16(), tc.codecs.Int8()):
        async with joined() as (server, (ps,)):
            net = await ps.module(Wide, name="net", seed=1)
            opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.2)
            model = ps.replicas(nn.Sequential(await net.replica(compress_pull=codec)))
            for _ in range(30):
                (model(X) - X.sin()).square().mean().backward()
                await model.push(opt)
            losses.append((hosted_value(server, net)(X) - X.sin()).square().mean().item())
            assert same(model.module[0], hosted_value(server, net)) == (codec is None)
    assert losses[0] < 0.45 and max(losses) < 1.02 * losses[0]
