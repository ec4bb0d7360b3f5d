"""Handlers of communicators: what unary callers send each other, and messages that our own trainers never send."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
import torch

from ps_service.engine import Engine
from ps_wire.errors import InvalidArgumentError, OverloadedError, TooLargeError, UnavailableError
from ps_wire.limits import Limits
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.values_pb2 import Tensor, Value
from tests.ps_service.requests.asking import ANNA, BERT, Asker, python, value
from tests.waiting import until


@pytest.fixture
async def ask(engine: Engine) -> Asker:
    return Asker(engine)


async def both(ask: Asker) -> None:
    """Makes a communicator of two trainers."""
    found = await asyncio.gather(
        *(
            ask(
                "join_communicator",
                # The requests run in two threads, in any order.
                pb.JoinCommunicatorRequest(member=1, name="team", size=2, rank=rank, patience_seconds=30.0),
                trainer,
            )
            for rank, trainer in enumerate((ANNA, BERT))
        )
    )
    assert [each.rank for each in found] == [0, 1]


def call(*pieces: pb.Piece, number: int = 1, kind: int = pb.COLLECTIVE_ALL_GATHER, **more: Any) -> pb.CollectiveRequest:
    return pb.CollectiveRequest(member=1, number=number, kind=kind, pieces=pieces, **more)  # type: ignore[arg-type]


def piece(sent: Any) -> pb.Piece:
    return pb.Piece(value=value(sent))


async def test_unary_callers_exchange_tensors_inside_messages(ask: Asker) -> None:
    await both(ask)
    sent = [call(piece({"t": torch.full((rank + 1,), rank), "rank": rank})) for rank in range(2)]
    to_anna, to_bert = await asyncio.gather(ask("collective", sent[0], ANNA), ask("collective", sent[1], BERT))
    assert python(to_anna.pieces[0].value)["t"].tolist() == [1, 1] and not to_anna.pieces[0].nbytes
    assert python(to_bert.pieces[0].value)["rank"] == 0
    sums = [
        call(piece([rank + 1]), number=2, kind=pb.COLLECTIVE_ALL_REDUCE, reduction=pb.REDUCTION_SUM)
        for rank in range(2)
    ]
    found = await asyncio.gather(ask("collective", sums[0], ANNA), ask("collective", sums[1], BERT))
    assert [python(each.reduced) for each in found] == [[3], [3]]
    await ask("leave_communicator", pb.LeaveCommunicatorRequest(member=1), ANNA)
    with pytest.raises(UnavailableError, match="rank 0"):
        await ask("collective", call(piece(1), number=3), BERT)
    with pytest.raises(UnavailableError, match="no member"):
        await ask("collective", call(piece(1), number=3), ANNA)


@pytest.mark.parametrize(
    "request_",
    [
        call(piece(1), kind=pb.COLLECTIVE_UNSPECIFIED),
        call(piece(1), kind=99),
        call(piece(1), kind=pb.COLLECTIVE_ALL_REDUCE),
        call(piece(1), kind=pb.COLLECTIVE_ALL_REDUCE, reduction=pb.REDUCTION_KEEP),
        call(piece("text"), kind=pb.COLLECTIVE_ALL_REDUCE, reduction=pb.REDUCTION_SUM),
        call(kind=pb.COLLECTIVE_ALL_REDUCE, reduction=pb.REDUCTION_SUM),
        call(piece(1), piece(2), kind=pb.COLLECTIVE_ALL_REDUCE, reduction=pb.REDUCTION_SUM),
        call(pb.Piece(value=value(1), offset=5, nbytes=1)),
        call(pb.Piece(value=value(1), offset=1 << 63, nbytes=1 << 63)),
        call(
            pb.Piece(value=Value(tensor=Tensor(dtype=1, shape=[1 << 40], nbytes=4))),  # type: ignore[arg-type]
            kind=pb.COLLECTIVE_ALL_REDUCE,
            reduction=pb.REDUCTION_SUM,
        ),
        call(piece(1), wait_seconds=-1.0),
        call(piece(1), wait_seconds=math.nan),
        call(piece(1), wait_seconds=1e10),
    ],
)
async def test_a_call_that_makes_no_sense_is_refused_and_has_not_arrived(
    ask: Asker, request_: pb.CollectiveRequest
) -> None:
    await both(ask)
    with pytest.raises(InvalidArgumentError):
        await ask("collective", request_, ANNA)
    found = await asyncio.gather(ask("collective", call(piece(1)), ANNA), ask("collective", call(piece(2)), BERT))
    assert [python(each.pieces[0].value) for each in found] == [2, 1]


@pytest.mark.parametrize("patience", [0.0, -1.0, math.nan, math.inf, 1e6])
async def test_a_patience_that_makes_no_sense_is_refused(ask: Asker, patience: float) -> None:
    with pytest.raises(InvalidArgumentError, match="away"):
        await ask(
            "join_communicator", pb.JoinCommunicatorRequest(member=1, name="team", size=1, patience_seconds=patience)
        )


async def test_values_that_would_not_fit_into_one_answer_end_the_communicator(ask: Asker) -> None:
    await both(ask)
    waiting = asyncio.create_task(ask("collective", call(piece("x" * (17 << 20))), ANNA))
    await until(lambda: any(each.open for each in ask.engine.communicators._present))
    with pytest.raises(TooLargeError, match="besides tensors"):
        await ask("collective", call(piece("y" * (17 << 20))), BERT)
    with pytest.raises(TooLargeError, match="besides tensors"):
        await waiting


async def test_a_reduction_counts_the_bytes_that_it_computes_with() -> None:
    engine = Engine("ps0", limits=Limits(max_message_bytes=1 << 20))
    try:
        ask = Asker(engine)
        await both(ask)
        small = piece(torch.zeros(200_000, dtype=torch.uint8))  # 1.6 MB as int64
        with pytest.raises((TooLargeError, OverloadedError)):
            await ask("collective", call(small, kind=pb.COLLECTIVE_ALL_REDUCE, reduction=pb.REDUCTION_SUM), ANNA)
    finally:
        engine.close()
