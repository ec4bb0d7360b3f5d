"""What hypothesis draws values, tensors and packets from."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import strategies as st

from ps_wire.codec import dtypes
from ps_wire.limits import MAX_DEPTH
from ps_wire.refs import Ref

QUANTIZED = (torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4)
PLAIN = tuple(dtype for dtype in dtypes.TO_WIRE if dtype not in QUANTIZED)

shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
dtypes_ = st.sampled_from(PLAIN)


def tensor_of(raw: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor with these very bits."""
    if not math.prod(shape):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(raw), dtype=dtype).view(shape)


@st.composite
def dense_tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any bits of any dtype, often a view with holes, sometimes with its axes exchanged."""
    dtype, shape = draw(dtypes_), draw(shapes)
    nbytes = math.prod(shape) * dtype.itemsize
    tensor = tensor_of(draw(st.binary(min_size=nbytes, max_size=nbytes)), dtype, shape)
    if shape and draw(st.booleans()):
        axis = draw(st.integers(0, len(shape) - 1))
        tensor = tensor.transpose(0, axis)
    if shape and draw(st.booleans()):
        tensor = tensor[:: draw(st.integers(1, 3))]
    return tensor


@st.composite
def sparse_tensors(draw: st.DrawFn) -> torch.Tensor:
    """Coordinates with repetitions, scalar or dense values behind them, coalesced or not."""
    sizes, dense = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)), draw(st.sampled_from([(), (2,), (0,)]))
    count = draw(st.integers(0, 5))
    rows = [draw(st.lists(st.integers(0, size - 1), min_size=count, max_size=count)) for size in sizes]
    values = torch.tensor(draw(st.lists(st.integers(-9, 9), min_size=count, max_size=count)), dtype=torch.float32)
    values = values.view(count, *[1] * len(dense)).expand(count, *dense)
    indices = torch.tensor(rows, dtype=torch.int64).view(len(sizes), count)
    tensor = torch.sparse_coo_tensor(indices, values, (*sizes, *dense), check_invariants=True)
    return tensor.coalesce() if draw(st.booleans()) else tensor


text = st.text(st.characters(codec="utf-8"), max_size=8)
refs = st.builds(Ref, text, st.text("0123456789abcdef", min_size=32, max_size=32), text)
hashable = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    text,
    st.binary(max_size=8),
    refs,
    st.sampled_from(list(dtypes.TO_WIRE)),
    st.sampled_from([torch.device("cpu"), torch.device("cuda", 3), torch.device("meta")]),
)
small = st.one_of(st.none(), st.integers())
leaves = st.one_of(hashable, st.builds(slice, small, small, small), dense_tensors(), sparse_tensors())


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = st.one_of(hashable, st.lists(hashable, max_size=2).map(tuple))
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
    )


values = st.recursive(leaves, _containers, max_leaves=12)
"""Everything that travels, nested."""


def nested(depth: int, kind: type) -> Any:
    """A value that many containers of one kind deep."""
    value: Any = 7
    for _ in range(depth):
        value = {"key": value} if kind is dict else slice(None, value) if kind is slice else kind([value])
    return value


TOO_DEEP = MAX_DEPTH + 1
