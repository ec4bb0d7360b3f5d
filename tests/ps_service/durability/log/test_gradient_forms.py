"""Gradients are encoded as any encoder does it, also where their form is known."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from ps_service.durability.log.gradient_forms import GradientForms
from ps_wire.codec.payload import PayloadWriter
from ps_wire.codec.values import Encoder
from ps_wire.v1.values_pb2 import Value


class Stepper:
    pass


def _sparse(count: int, coalesced: bool) -> torch.Tensor:
    indices = torch.arange(count).unsqueeze(0) if coalesced else torch.zeros(1, count, dtype=torch.int64)
    return torch.sparse_coo_tensor(
        indices, torch.randn(count, 2), (9, 2), is_coalesced=coalesced, check_invariants=False
    )


MAKERS: list[Any] = [
    lambda: torch.randn(3, 2),
    lambda: torch.randn(3, 2),
    lambda: torch.randn(2, 3),
    lambda: torch.randn(6),
    lambda: torch.randn(3, 2).t(),
    lambda: torch.randn(1).expand(4),
    lambda: torch.randn(()),
    lambda: torch.empty(0, 2),
    lambda: torch.randn(3, 2, dtype=torch.float64),
    lambda: torch.randn(3, 2).bfloat16(),
    lambda: torch.randn(3, 2, dtype=torch.complex64),
    lambda: torch.randn(3, dtype=torch.complex64).conj().imag,
    lambda: torch.randn(3, 2, requires_grad=True),
    lambda: torch.nn.Parameter(torch.randn(3, 2)),
    lambda: _sparse(3, True),
    lambda: _sparse(3, False),
    lambda: _sparse(4, True),
    lambda: _sparse(0, True),
]
STEPS = st.lists(st.tuples(st.lists(st.sampled_from(MAKERS), max_size=3), st.booleans(), st.booleans()), max_size=6)


@given(STEPS)
def test_messages_and_bytes_are_those_of_the_encoder(steps: list[Any]) -> None:
    forms, optimizers = GradientForms(), [Stepper(), Stepper()]
    for makers, which, is_later in steps:
        gradients = [make() for make in makers]
        for _ in range(2):
            message, payload, expected, wanted = Value(), PayloadWriter(), Value(), PayloadWriter()
            for each in (payload, wanted) if is_later else ():
                each.add(memoryview(b"before"))
            optimizer: Any = optimizers[which]
            forms.encode(optimizer, gradients, message, payload)
            Encoder(wanted).encode_into(expected, gradients)
            assert message == expected
            assert (b"".join(payload.chunks), payload.nbytes) == (b"".join(wanted.chunks), wanted.nbytes)
