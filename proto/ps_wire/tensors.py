"""Tensors to bytes and back, dense and sparse, without pickle."""

from __future__ import annotations

import math

import numpy as np
import torch

from ps_wire import dtypes
from ps_wire.errors import InvalidArgumentError
from ps_wire.payload import Buffer, PayloadReader, PayloadWriter
from ps_wire.v1 import values_pb2


def pack(tensor: torch.Tensor, message: values_pb2.Tensor, payload: PayloadWriter | None) -> None:
    """Describes a dense tensor in `message` and puts its bytes into `payload`, or into the message when there is none.

    The bytes are not copied when the tensor is contiguous and on the CPU, so it must not change until they were sent.

    Args:
        tensor: Any dtype and shape, strided, on any device. Autograd history is dropped.
        message: Filled in.
        payload: Where the bytes go; `None` puts them into `message.data`.

    Raises:
        InvalidArgumentError: The tensor is quantized per channel, or on the meta device.
    """
    requires_grad = tensor.requires_grad
    tensor = _plain(tensor)
    if tensor.is_quantized:
        if tensor.qscheme() != torch.per_tensor_affine:
            raise InvalidArgumentError("a tensor quantized per channel cannot be sent; dequantize() it first")
        message.quantizer.scale = tensor.q_scale()
        message.quantizer.zero_point = tensor.q_zero_point()
        message.dtype = dtypes.to_wire(tensor.dtype)
        tensor = tensor.int_repr()
    else:
        message.dtype = dtypes.to_wire(tensor.dtype)
    message.shape.extend(tensor.shape)
    message.requires_grad = requires_grad
    chunk = _bytes_of(tensor)
    message.nbytes = len(chunk)
    if payload is None:
        message.data = bytes(chunk)
    elif len(chunk):
        message.offset = payload.add(chunk)


def unpack(message: values_pb2.Tensor, payload: PayloadReader) -> torch.Tensor:
    """The tensor a message describes; it owns its bytes, may be written to, and never requires grad.

    Raises:
        InvalidArgumentError: Shape, dtype and number of bytes do not fit together.
    """
    dtype = dtypes.from_wire(message.dtype)
    shape = list(message.shape)
    if any(size < 0 for size in shape):
        raise InvalidArgumentError(f"a tensor claims the shape {shape}")
    quantized = message.HasField("quantizer")
    stored = _QUANTIZED_STORAGE[dtype] if quantized and dtype in _QUANTIZED_STORAGE else dtype
    count = math.prod(shape)
    nbytes = len(message.data) or message.nbytes
    if count * stored.itemsize != nbytes:
        raise InvalidArgumentError(
            f"a {dtype} tensor of shape {shape} has {count * stored.itemsize} bytes, but {nbytes} were announced"
        )
    if not count:
        tensor = torch.empty(shape, dtype=stored)
    else:
        tensor = _from_bytes(_source(message, payload), stored).view(shape)
    if quantized:
        quantizer = message.quantizer
        return torch._make_per_tensor_quantized_tensor(tensor, quantizer.scale, quantizer.zero_point)
    return tensor


def pack_sparse(tensor: torch.Tensor, message: values_pb2.SparseTensor, payload: PayloadWriter | None) -> None:
    """Like `pack`, for a tensor in COO layout; whether it is coalesced travels with it."""
    detached = tensor.detach()
    pack(detached._indices(), message.indices, payload)
    pack(detached._values(), message.values, payload)
    message.shape.extend(tensor.shape)
    message.coalesced = detached.is_coalesced()
    message.requires_grad = tensor.requires_grad


def unpack_sparse(message: values_pb2.SparseTensor, payload: PayloadReader) -> torch.Tensor:
    """Like `unpack`, for a tensor in COO layout.

    Raises:
        InvalidArgumentError: Indices and values do not fit together, or an index is out of range.
    """
    indices, values = unpack(message.indices, payload), unpack(message.values, payload)
    if indices.dtype != torch.int64 or indices.dim() != 2:
        raise InvalidArgumentError("the indices of a sparse tensor must be int64 of two dimensions")
    try:
        return torch.sparse_coo_tensor(
            indices, values, list(message.shape), is_coalesced=message.coalesced, check_invariants=True
        )
    except RuntimeError as error:
        raise InvalidArgumentError(f"not a valid sparse tensor: {error}") from None


# What the integers of a quantized tensor are stored as.
_QUANTIZED_STORAGE = {torch.quint8: torch.uint8, torch.qint8: torch.int8, torch.qint32: torch.int32}


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers on the CPU, without history and without pending conjugation or negation."""
    if tensor.is_meta:
        raise InvalidArgumentError("a tensor on the meta device has no numbers to send")
    tensor = tensor.detach()
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    if tensor.is_complex():
        tensor = tensor.resolve_conj()
    return tensor.resolve_neg() if tensor.is_neg() else tensor


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    if not tensor.numel():
        return memoryview(b"")
    flat = tensor.contiguous().view(-1)
    return flat.view(torch.uint8).numpy().data


def _source(message: values_pb2.Tensor, payload: PayloadReader) -> Buffer:
    if message.data:
        return np.frombuffer(bytearray(message.data), np.uint8)
    return payload.take(message.offset, message.nbytes)


def _from_bytes(source: Buffer, dtype: torch.dtype) -> torch.Tensor:
    # Not a slice of one big tensor: every tensor needs a version counter of its own, or a write to one would
    # make autograd complain about its neighbours.
    return torch.frombuffer(source, dtype=dtype)
