"""Encodes dense and sparse tensors as bytes, and decodes them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch._C._functorch import is_functorch_wrapped_tensor

from ps_wire.codec import dtypes
from ps_wire.codec.names import full_name
from ps_wire.codec.strides import checked_span, in_memory_order, order_of
from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from ps_wire.codec.payload import Buffer, PayloadReader, PayloadWriter
    from ps_wire.v1 import values_pb2


def pack(tensor: torch.Tensor, message: values_pb2.Tensor, payload: PayloadWriter | None) -> None:
    """Describes a dense tensor in `message`, and adds its bytes to `payload`, or to the message if there is no payload.

    The strides are kept, except those of expanded and of quantized tensors, and of views with large gaps, which become
    row-major. The bytes of a tensor on the CPU without gaps are not copied, so it must not change until they are sent.
    What cannot be sent is an `InvalidArgumentError`.
    """
    if tensor.requires_grad:
        message.requires_grad = True
        tensor = tensor.detach()
    dtype = tensor.dtype
    message.dtype = dtypes.TO_WIRE.get(dtype) or dtypes.to_wire(dtype)
    message.shape.extend(tensor.shape)
    # Gradients are often expanded, and those have a stride of 0.
    if not tensor.is_contiguous() and dtype not in _QUANTIZED and 0 not in tensor.stride():
        tensor = in_memory_order(tensor, message, dtype in _WITH_GAPS)
    if (
        dtype in _NUMPY
        and tensor.is_cpu
        and type(tensor) is torch.Tensor
        and not tensor.is_neg()
        and tensor.numel()
        and tensor.dim() <= _MOST_NUMPY_DIMENSIONS
        # A copy by torch changes bools whose byte is neither 0 nor 1.
        and (dtype is not torch.bool or tensor.is_contiguous())
    ):
        # Like the code below, in a third of the time.
        chunk = tensor.contiguous().numpy().data.cast("B")
    else:
        tensor = plain(tensor)
        chunk = bytes_of(_integers(tensor, message.quantizer) if tensor.is_quantized else tensor)
    message.nbytes = len(chunk)
    if payload is None:
        message.data = bytes(chunk)
    elif len(chunk):
        message.offset = payload.add(chunk)


def unpack(message: values_pb2.Tensor, payload: PayloadReader) -> torch.Tensor:
    """The tensor that a message describes. It is on the CPU, owns its bytes, is writable, and does not require grad."""
    dtype = dtypes.FROM_WIRE.get(message.dtype) or dtypes.from_wire(message.dtype)
    shape = message.shape[:]
    if shape and min(shape) < 0:
        raise InvalidArgumentError(f"a tensor claims the shape {shape}")
    if (dtype in _QUANTIZED) != message.HasField("quantizer"):
        # Torch crashes on a tensor of such a dtype without a quantizer.
        raise InvalidArgumentError(f"{dtype} tensors {'need a' if dtype in _QUANTIZED else 'have no'} quantizer")
    stored, per_stored = _QUANTIZED.get(dtype, (dtype, 1))
    count = math.prod(shape)
    expected = -(-count // per_stored) * stored.itemsize
    nbytes = len(message.data) or message.nbytes
    if expected != nbytes:
        raise InvalidArgumentError(
            f"a {dtype} tensor of shape {shape} has {expected} bytes, but {nbytes} were announced"
        )
    source = None
    if count:
        source = (
            np.frombuffer(bytearray(message.data), np.uint8) if message.data else payload.take(message.offset, nbytes)
        )
        if message.strides:
            return _strided(dtype, shape, message.strides[:], source)
        numpy_dtype = _NUMPY.get(dtype)
        if numpy_dtype is not None and len(shape) <= _MOST_NUMPY_DIMENSIONS:
            # Like the code below, in a third of the time.
            return torch.from_numpy(np.ndarray(shape, numpy_dtype, source))
    try:
        if dtype in _QUANTIZED:
            return _quantized(message.quantizer, dtype, shape, source)
        if source is None:
            return torch.empty(shape, dtype=dtype, device="cpu")
        # Not a slice of one big tensor: every tensor needs a version counter of its own, or a write to one would
        # make autograd raise for the others.
        flat = torch.frombuffer(source, dtype=dtype)
        # `data` is no view of the flat tensor: autograd allows no writes to an output of a call that is a view.
        return flat if shape == [count] else flat.view(shape).data
    except RuntimeError as error:
        raise InvalidArgumentError(f"not a valid tensor: {error}") from None


def without_bytes(tensor: torch.Tensor) -> InvalidArgumentError | None:
    """The error for a tensor that `pack` could not read, if that is so because it stands for others; else None."""
    if tensor.is_nested:
        return InvalidArgumentError("a nested tensor cannot be sent; send a padded one, or its parts: x.unbind()")
    if is_functorch_wrapped_tensor(tensor):
        return InvalidArgumentError(
            "a tensor inside of torch.func.vmap, grad or another transform cannot be sent; make the call outside of it"
        )
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return InvalidArgumentError(f"a {full_name(type(tensor))} cannot be sent; make it a plain tensor first")
    return None


def pack_sparse(tensor: torch.Tensor, message: values_pb2.SparseTensor, payload: PayloadWriter | None) -> None:
    """Like `pack`, for a tensor in COO layout. The message keeps whether it is coalesced."""
    detached = tensor.detach()
    pack(detached._indices().contiguous(), message.indices, payload)
    pack(detached._values().contiguous(), message.values, payload)
    message.shape.extend(tensor.shape)
    message.coalesced = detached.is_coalesced()
    message.requires_grad = tensor.requires_grad


def unpack_sparse(message: values_pb2.SparseTensor, payload: PayloadReader) -> torch.Tensor:
    """Like `unpack`, for a tensor in COO layout."""
    indices, values = unpack(message.indices, payload), unpack(message.values, payload)
    if indices.dtype != torch.int64 or indices.dim() != 2:
        raise InvalidArgumentError("the indices of a sparse tensor must be int64 of two dimensions")
    try:
        return torch.sparse_coo_tensor(
            indices, values, list(message.shape), device="cpu", is_coalesced=message.coalesced, check_invariants=True
        )
    except RuntimeError as error:
        raise InvalidArgumentError(f"not a valid sparse tensor: {error}") from None


# For each quantized dtype: the dtype that stores its integers, and the number of integers in one element of that.
_QUANTIZED = {
    torch.quint8: (torch.uint8, 1),
    torch.qint8: (torch.int8, 1),
    torch.qint32: (torch.int32, 1),
    torch.quint4x2: (torch.uint8, 2),
    torch.quint2x4: (torch.uint8, 4),
}

_NUMPY: Final[dict[torch.dtype, Any]] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.float16: np.float16,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
}
"""Dtypes that numpy has, too."""

_WITH_GAPS: Final = frozenset(_NUMPY) - {torch.bool}
"""Dtypes of tensors that keep gaps in memory; to copy others, torch would change their bits."""

_MOST_NUMPY_DIMENSIONS: Final = 32


def _strided(dtype: torch.dtype, shape: list[int], strides: list[int], source: Buffer) -> torch.Tensor:
    """A tensor with these strides, of elements that arrived in the order of memory."""
    if dtype in _QUANTIZED:
        raise InvalidArgumentError(f"{dtype} tensors have no strides here")
    count = math.prod(shape)
    span = checked_span(shape, strides, count, dtype.itemsize, dtype in _WITH_GAPS)
    if span == count:
        # `data` is no view, as in `unpack`.
        return torch.frombuffer(source, dtype=dtype).as_strided(shape, strides).data
    numpy_dtype = _NUMPY[dtype]
    steps = [stride * dtype.itemsize for stride in strides]
    whole = np.ndarray(shape, numpy_dtype, np.zeros(span * dtype.itemsize, np.uint8), strides=steps)
    order = order_of(strides)
    whole.transpose(order)[...] = np.ndarray([shape[place] for place in order], numpy_dtype, source)
    return torch.from_numpy(whole)


def _integers(tensor: torch.Tensor, message: values_pb2.Quantizer) -> torch.Tensor:
    """The stored integers of a quantized tensor."""
    if tensor.qscheme() != torch.per_tensor_affine:
        raise InvalidArgumentError("a tensor quantized per channel cannot be sent; dequantize() it first")
    if _QUANTIZED[tensor.dtype][1] > 1 and not (tensor.is_contiguous() and tensor.storage_offset() == 0):
        raise InvalidArgumentError(f"a {tensor.dtype} tensor that is a view cannot be sent: torch cannot copy it")
    message.scale = tensor.q_scale()
    message.zero_point = tensor.q_zero_point()
    return tensor.int_repr()


def _quantized(
    message: values_pb2.Quantizer, dtype: torch.dtype, shape: list[int], integers: Buffer | None
) -> torch.Tensor:
    tensor = torch._empty_affine_quantized(shape, scale=message.scale, zero_point=message.zero_point, dtype=dtype)
    if integers is not None:
        stored = torch.empty(0, dtype=torch.uint8, device="cpu").set_(tensor.untyped_storage())
        stored[: len(integers)] = torch.frombuffer(integers, dtype=torch.uint8)
    return tensor


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same values on the CPU, without pending conjugation or negation."""
    if not tensor.is_cpu:
        if tensor.is_meta:
            raise InvalidArgumentError("a tensor on the meta device has no numbers to send")
        tensor = tensor.cpu()
    if tensor.is_complex():
        tensor = tensor.resolve_conj()
    return tensor.resolve_neg() if tensor.is_neg() else tensor


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor that `plain` returned, row by row. They are copied only if it is not contiguous."""
    if not tensor.numel():
        return memoryview(b"")
    if tensor.itemsize == 1:
        # Torch cannot copy some dtypes that fit into a byte; it can copy uint8.
        tensor = tensor.view(torch.uint8)
    # Not `view(-1)`: a single element may have any stride, such as the 0 that an expanded gradient has.
    flat = tensor.contiguous().as_strided((tensor.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data
