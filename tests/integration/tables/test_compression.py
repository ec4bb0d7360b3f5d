"""Tests of codecs for the gradients of rows: what arrives, how many bytes travel, and what is refused."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch
from torch.nn import functional

import trainer_client as tc
from ps_wire.compression.choice import Choice
from ps_wire.compression.codec import Encoded
from ps_wire.compression.registry import encode
from tests.conftest import StartOwner
from trainer_client.graph.batch import Batch
from trainer_client.tables import look_ups

DIM = 16
IDS = torch.arange(-40, 40).repeat(2)[torch.randperm(160, generator=torch.Generator().manual_seed(0))]
OFFSETS = torch.arange(0, 160, 2)


@pytest.fixture
async def ps(request: pytest.FixtureRequest, start_owner: StartOwner) -> AsyncIterator[tc.Client]:
    """A trainer of two owners, if nothing else is asked for."""
    addresses = [(await start_owner(f"ps{number}")).address for number in range(getattr(request, "param", 2))]
    async with tc.connect(*addresses) as client:
        yield client


one_or_two = pytest.mark.parametrize("ps", [1, 2], indirect=True, ids=["one owner", "two owners"])


async def zeros(ps: tc.Client, name: str = "items", **more: Any) -> tc.Table:
    """A table whose rows begin with 0, and whose step subtracts the gradient."""
    return await ps.table(name, DIM, tc.tables.SGD(lr=1.0), init=tc.tables.Zeros(), **more)


def factors(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, DIM, generator=torch.Generator().manual_seed(seed))


async def train(ps: tc.Client, *tables: tc.Table, bags: bool = False, scale: float = 1.0) -> None:
    """Steps tables: the gradient is one number after the other for each row, or for each bag of two rows."""
    wanted: Any = (IDS, OFFSETS) if bags else IDS
    weights = factors(len(OFFSETS) if bags else len(IDS)) * scale
    async with ps.context() as ctx:
        found = await ps.look_up(dict.fromkeys(tables, wanted))
        loss = torch.stack([(rows * weights).sum() for rows in found.values()]).sum()
        await ctx.backward(loss)
        for each in tables:
            await each.step(ctx)


def gradient(bags: bool = False) -> torch.Tensor:
    """The gradients of rows -40 to 39 in local torch, where those of bags are added for each row."""
    local = torch.zeros(80, DIM, requires_grad=True)
    if bags:
        pooled = functional.embedding_bag(IDS + 40, local, OFFSETS, mode="sum")
        (pooled * factors(len(OFFSETS))).sum().backward()
    else:
        (local[IDS + 40] * factors(len(IDS))).sum().backward()
    assert local.grad is not None
    return local.grad


@pytest.mark.parametrize(
    ("ps", "codec"),
    [
        *((number, codec) for number in (1, 2) for codec in (tc.codecs.Int8(block=DIM), None)),
        *((1, tc.codecs.FP16()), (2, tc.codecs.BF16()), (2, tc.codecs.Zstd())),
    ],
    indirect=["ps"],
    ids=str,
)
async def test_rows_get_what_the_codec_makes_of_their_gradient(ps: tc.Client, codec: Any) -> None:
    for bags in (False, True):
        items = await zeros(ps, f"items{bags}", compress=None if codec is None else Choice(codec, min_numel=0))
        await train(ps, items, bags=bags)
        found = -await items(torch.arange(-40, 40))
        if bags:
            pooled = factors(len(OFFSETS))
            sent = pooled if codec is None else decoded(codec, pooled)
            local = torch.zeros(80, DIM, requires_grad=True)
            (functional.embedding_bag(IDS + 40, local, OFFSETS, mode="sum") * sent).sum().backward()
            expected = local.grad
        else:
            expected = gradient() if codec is None else decoded(codec, gradient())
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        lossy = codec not in (None, tc.codecs.Zstd())
        assert torch.equal(found.round(decimals=4), gradient(bags).round(decimals=4)) != lossy


def decoded(codec: Any, value: torch.Tensor) -> torch.Tensor:
    encoded = encode(codec, value)
    assert isinstance(encoded, Encoded)
    return codec.decode(encoded, value)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("codec", "most"), [(tc.codecs.BF16(), 0.55), (tc.codecs.Int8(block=DIM), 0.35)], ids=str)
async def test_fewer_bytes_are_sent(ps: tc.Client, codec: Any, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: dict[str, int] = {}
    now = ""
    before = Batch.send

    def send(batch: Batch, *more: Any) -> Any:
        sizes[now] = sizes.get(now, 0) + batch._payload.nbytes
        return before(batch, *more)

    monkeypatch.setattr(Batch, "send", send)
    for now, choice in (("plain", None), ("compressed", Choice(codec, min_numel=0))):
        await train(ps, await zeros(ps, now, compress=choice))
    assert 0 < sizes["compressed"] < most * sizes["plain"]


@pytest.mark.parametrize("codec", [tc.codecs.FP16(), tc.codecs.BF16(), tc.codecs.Int8()], ids=str)
async def test_what_a_codec_cannot_express_arrives_as_it_is(ps: tc.Client, codec: Any) -> None:
    items = await zeros(ps, compress=Choice(codec, min_numel=0))
    for bad in (math.inf, math.nan):
        with pytest.raises(tc.errors.NonFiniteGradientError, match="its optimizer has applied nothing"):
            await train(ps, items, scale=bad)
    assert not (await items(IDS)).any()
    applying = await zeros(ps, "applying", compress=Choice(codec, min_numel=0), non_finite="apply")
    await train(ps, applying, scale=math.inf)
    assert not torch.isfinite(await applying(IDS)).any()
    # Beyond the range of float16.
    await train(ps, items, scale=1e6)
    found, expected = -await items(torch.arange(-40, 40)), gradient() * 1e6
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=float(expected.abs().max()) / 200)


@one_or_two
async def test_codecs_are_chosen_by_the_names_of_tables_and_small_gradients_are_sent_as_they_are(ps: tc.Client) -> None:
    choice = {"coarse*": tc.codecs.Int8(), "default": None}
    coarse, exact = await zeros(ps, "coarse", compress=choice), await zeros(ps, "exact", compress=choice)
    await train(ps, coarse, exact)
    rows = torch.arange(-40, 40)
    torch.testing.assert_close(-await exact(rows), gradient())
    differs = (-await coarse(rows) - gradient()).abs().amax(1)
    if len(ps.sessions) == 1:
        assert 0 < differs.max() < gradient().abs().max() / 250
    else:
        assert not differs.any()  # either owner gets fewer than 1024 numbers
    # Another handle to the same table has its own choice.
    other = await ps.table("coarse", compress=tc.codecs.Zstd())
    assert other.compress is not None and other.compress.codecs == [tc.codecs.Zstd()]
    assert (await ps.table("coarse")).compress is None


async def test_codecs_that_leave_the_rest_to_later_messages_are_refused(ps: tc.Client) -> None:
    for codec in (tc.codecs.TopK(0.5), tc.codecs.RandomK(0.5), tc.codecs.Sign(), tc.codecs.PowerSGD()):
        for choice in (codec, {"items": codec}):
            with pytest.raises(tc.errors.InvalidArgumentError, match="a copy of the table"):
                ps.table("items", DIM, compress=choice)
            with pytest.raises(tc.errors.InvalidArgumentError, match="a copy of the table"):
                ps.table("items", compress=choice)
    with pytest.raises(tc.errors.UnknownNameError):
        await ps.table("items")  # nothing was made


BROKEN = {
    "too short": Encoded("bf16", {}, (torch.zeros(3, dtype=torch.bfloat16),)),
    "too long": Encoded("bf16", {}, (torch.zeros(1 << 16, dtype=torch.bfloat16),)),
    "another dtype": Encoded("bf16", {}, (torch.zeros(80 * DIM),)),
    "no tensor": Encoded("int8", {"block": 16}),
    "not known": Encoded("nothing", {}, (torch.zeros(80 * DIM),)),
    "sparse": Encoded("bf16", {}, (torch.zeros(DIM, dtype=torch.bfloat16),), (torch.zeros(1, 1, dtype=torch.int32),)),
}


@one_or_two
async def test_lengths_are_checked_and_a_wrong_message_changes_nothing(
    ps: tc.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = await zeros(ps, compress=tc.codecs.BF16())
    items.compress = Choice(tc.codecs.BF16(), min_numel=0)
    for what, broken in BROKEN.items():
        with monkeypatch.context() as patch:
            patch.setattr(look_ups, "encode", lambda codec, value, broken=broken: broken)
            with pytest.raises(tc.errors.InvalidArgumentError):
                await train(ps, items)
        assert not (await items(IDS)).any(), what
    await train(ps, items)
    assert (await items(IDS)).any()
