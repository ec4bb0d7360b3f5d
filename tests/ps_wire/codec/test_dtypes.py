"""Every dtype of torch has a number in the protocol, every number a dtype, and the names agree."""

from __future__ import annotations

import pytest
import torch

from ps_wire.codec import dtypes
from ps_wire.errors import InvalidArgumentError
from ps_wire.v1.values_pb2 import DType

ALL = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}


def test_every_dtype_of_torch_is_in_the_table() -> None:
    assert set(dtypes.TO_WIRE) == ALL
    assert len(ALL) >= 46


def test_every_number_of_the_protocol_is_a_dtype_of_torch() -> None:
    assert set(dtypes.FROM_WIRE) == set(DType.values()) - {DType.DTYPE_UNSPECIFIED}


def test_no_two_dtypes_share_a_number() -> None:
    assert len(set(dtypes.TO_WIRE.values())) == len(dtypes.TO_WIRE) == len(dtypes.FROM_WIRE)


def test_a_dtype_keeps_its_name_and_comes_back() -> None:
    for dtype in ALL:
        number = dtypes.to_wire(dtype)
        assert f"torch.{DType.Name(number).removeprefix('DTYPE_').lower()}" == str(dtype)
        assert dtypes.from_wire(number) is dtype, dtype


@pytest.mark.parametrize("number", [DType.DTYPE_UNSPECIFIED, max(DType.values()) + 1, -1, 1 << 31])
def test_a_number_that_is_no_dtype_is_refused(number: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"dtype number {number} "):
        dtypes.from_wire(number)
