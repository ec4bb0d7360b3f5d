"""Functions and layers of torch on a real owner: what would take its memory or its life is refused, and it goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.functions.groups import Level
from ps_service.functions.torch_functions import TorchFunctions
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server
from ps_wire.limits import MIB, Limits
from trainer_client.handles import calls

Attempt = Callable[[tc.Client], Awaitable[Any]]


def forward(cls: type[nn.Module], *inputs: Any, **settings: Any) -> Attempt:
    """Makes a layer, and calls it."""

    async def attempt(ps: tc.Client) -> None:
        await (await ps.module(cls, **settings))(*inputs)

    return attempt


X = torch.ones(1, 1, 4, 4)
META = torch.device("meta")

REFUSED: dict[str, tuple[Attempt, type[tc.PsError], str]] = {
    "zeros": (lambda ps: ps.call(torch.zeros, 2**40), tc.errors.TooLargeError, "raise max_result_bytes on the owner"),
    "broadcast": (
        lambda ps: ps.call(torch.add, torch.ones(10**5, 1), torch.ones(1, 10**5)),
        tc.errors.TooLargeError,
        "would need 40,000,000,000 bytes",
    ),
    "out": (
        lambda ps: ps.call(torch.add, X, X, out=torch.ones(1, 1, 4, 4)),
        tc.errors.NotAllowedError,
        "returns its result here",
    ),
    "device": (
        lambda ps: ps.call(torch.zeros, 2, device=torch.device("meta")),
        tc.errors.InvalidArgumentError,
        "computes on",
    ),
    "index": (
        lambda ps: ps.call(F.embedding, torch.tensor([7]), torch.ones(3, 2)),
        tc.errors.InvalidArgumentError,
        r"must lie in \[0, 3\); these lie in \[7, 7\]",
    ),
    "csr": (
        lambda ps: ps.call("torch.sparse_csr_tensor", [0, 9], [0], [1.0]),
        tc.errors.NotAllowedError,
        "docs/torch-func",
    ),
    "table": (
        lambda ps: ps.module(nn.Embedding, 10**12, 1),
        tc.errors.TooLargeError,
        "raise max_object_bytes on the owner",
    ),
    "table by name": (lambda ps: ps.call(nn.Embedding, 10**12, 1), tc.errors.TooLargeError, "raise max_object_bytes"),
    "table that stays": (
        lambda ps: ps.remote(nn.Embedding, 10**12, 1),
        tc.errors.TooLargeError,
        "raise max_object_bytes",
    ),
    "layers": (
        lambda ps: ps.module(nn.Transformer, 8, 2, num_encoder_layers=10**9),
        tc.errors.TooLargeError,
        "1,000,000,000 layers; 256 are allowed",
    ),
    "layers by place": (lambda ps: ps.module(nn.LSTM, 3, 4, 10**9), tc.errors.TooLargeError, "256 are allowed"),
    "many": (lambda ps: ps.module(nn.Transformer, 2048, 8, 256, 256), tc.errors.TooLargeError, "limit for one object"),
    "meta": (
        lambda ps: ps.module(nn.Linear, 2, 2, device=torch.device("meta")),
        tc.errors.InvalidArgumentError,
        "computes on",
    ),
    "upsample": (forward(nn.Upsample, X, scale_factor=1e9), tc.errors.TooLargeError, "Upsample would need"),
    "pad": (forward(nn.ZeroPad2d, X, padding=10**9), tc.errors.TooLargeError, "ZeroPad2d would need"),
    "fold": (
        forward(nn.Fold, torch.ones(1, 4, 4), output_size=(10**5, 10**5), kernel_size=2, stride=1000),
        tc.errors.TooLargeError,
        "Fold would need",
    ),
    "unpool": (
        forward(nn.MaxUnpool2d, X, torch.full(X.shape, 10**9), kernel_size=2),
        tc.errors.InvalidArgumentError,
        "indices of an unpooling",
    ),
    "bags": (
        forward(nn.EmbeddingBag, torch.tensor([0, 1]), torch.tensor([0, 9]), num_embeddings=3, embedding_dim=2),
        tc.errors.InvalidArgumentError,
        "offsets of bags",
    ),
    "labels": (
        forward(nn.CTCLoss, torch.rand(9, 1, 3), torch.tensor([[-9, 1]]), torch.tensor([9]), torch.tensor([2])),
        tc.errors.InvalidArgumentError,
        "labels of a CTC loss",
    ),
    "stride": (
        forward(nn.Conv2d, X, in_channels=1, out_channels=1, kernel_size=1, stride=10**9),
        tc.errors.InvalidArgumentError,
        "at most 1,024",
    ),
}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("attempt", "error", "words"), REFUSED.values(), ids=REFUSED)
async def test_arguments_that_would_crash_the_owner_are_refused(
    both: tc.Client, attempt: Attempt, error: type[tc.PsError], words: str
) -> None:
    with pytest.raises(error, match=words):
        await attempt(both)
    assert torch.equal(await both.call(torch.add, X, 1), X + 1)


@pytest.mark.parametrize("level", list(Level))
async def test_the_level_says_how_many_functions_there_are(level: Level) -> None:
    engine = Engine("ps0", AllowList(functions=TorchFunctions(level)))
    async with Server(engine, "127.0.0.1:0") as owner, tc.connect(owner.address) as ps:
        for function, needed in ((torch.add, Level.BASIC), (torch.gcd, Level.ALL)):
            arguments = torch.tensor([4]), torch.tensor([2])
            if level >= needed:
                assert torch.equal(await ps.call(function, *arguments), function(*arguments))
            else:
                with pytest.raises(tc.errors.NotAllowedError, match=f"--torch-functions {level.name.lower()}"):
                    await ps.call(function, *arguments)


async def test_the_limits_are_the_owners_to_set() -> None:
    engine = Engine("ps0", limits=Limits(max_result_bytes=MIB, max_object_bytes=2 * MIB))
    async with Server(engine, "127.0.0.1:0") as owner, tc.connect(owner.address) as ps:
        assert (await ps.call(torch.ones, MIB // 8)).numel() == MIB // 8
        with pytest.raises(tc.errors.TooLargeError, match="the limit is 1,048,576"):
            await ps.call(torch.ones, MIB)
        await ps.module(nn.Embedding, 1000, 100)
        with pytest.raises(tc.errors.TooLargeError, match="the limit for one object is 2,097,152"):
            await ps.module(nn.Embedding, 10_000, 100)
        layer = await ps.module(nn.Linear, 1, 1000)
        with pytest.raises(tc.errors.TooLargeError, match="Linear would need 4,000,000 bytes"):
            await layer(torch.ones(1000, 1))


async def test_a_function_by_name_gives_gradients_as_before(ps: tc.Client) -> None:
    x = torch.rand(3, 4, requires_grad=True)
    async with ps.context() as ctx:
        hidden = await ps.call(F.layer_norm, x, (4,))
        await ctx.backward(await ps.call(F.cross_entropy, hidden, torch.tensor([0, 3, 1])))
        gradients = await ctx.get_gradients()
    F.cross_entropy(F.layer_norm(x, (4,)), torch.tensor([0, 3, 1])).backward()
    assert torch.equal(gradients[x], x.grad)


@pytest.mark.parametrize("method", ["mul_", "__imul__"])
async def test_a_kept_result_of_an_open_pass_is_not_written_to_in_place(ps: tc.Client, method: str) -> None:
    x = torch.ones(2, 3, requires_grad=True)
    async with ps.context() as ctx:
        kept = await ps.remote(torch.mul, x, 2.0)
        with pytest.raises(tc.errors.InvalidArgumentError, match="in place"):
            await calls.call(kept.session, kept, method, (3.0,), {})
        thrice = await calls.call(kept.session, kept, "mul", (3.0,), {}, keep=True)
        await ctx.backward((await thrice.to_here() + await kept.to_here()).sum())
        assert torch.equal(ctx.gradient(x), torch.full((2, 3), 8.0))
    await calls.call(kept.session, kept, method, (3.0,), {})
    assert torch.equal(await kept.to_here(), torch.full((2, 3), 6.0))
