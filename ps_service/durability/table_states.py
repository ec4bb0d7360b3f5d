"""The state of a table in a checkpoint, written and read block by block: memory never holds its rows a second time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ps_service.durability import value_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch

    from ps_service.durability.tensors import TensorReader, TensorWriter
    from ps_wire.v1.values_pb2 import Value

BLOCKS: Final = "blocks"
"""The key under which a table's `state_dict` has its rows, as an iterable of blocks."""


def store(state: Mapping[str, Any], message: Value, names: Any, tensors: TensorWriter, prefix: str) -> None:
    """Encodes the result of a table's `state_dict` and writes its tensors, as `value_files.store` does.

    Each block is asked for when its turn comes.
    """
    message.dict.SetInParent()
    for key, value in state.items():
        item = message.dict.items.add()
        item.key.text = key
        if key == BLOCKS:
            item.value.list.SetInParent()
            for number, block in enumerate(value):
                value_files.store(block, item.value.list.items.add(), names, tensors, f"{prefix}/{key}.{number}")
        else:
            value_files.store(value, item.value, names, tensors, f"{prefix}/{key}")


def load(message: Value, names: Sequence[str], tensors: TensorReader) -> dict[str, Any]:
    """Decodes the state of a table. Its blocks are an iterator, which reads one of them at a time.

    Raises `InvalidArgumentError` if a tensor is missing; of those in blocks, when the block is read.
    """
    state: dict[str, Any] = {}
    for item in message.dict.items:
        if item.key.text == BLOCKS:
            state[BLOCKS] = (value_files.load(block, names, tensors) for block in item.value.list.items)
        else:
            state[item.key.text] = value_files.load(item.value, names, tensors)
    return state


def columns(
    message: Value, names: Sequence[str], tensors: TensorReader
) -> Iterator[dict[str, Callable[[], torch.Tensor]]]:
    """For each block of a state, functions that read one of its columns, by name. These raise as `load`."""
    for item in message.dict.items:
        if item.key.text == BLOCKS:
            for block in item.value.list.items:
                yield {
                    column.key.text: partial(value_files.load, column.value, names, tensors)
                    for column in block.dict.items
                }
