"""Tensors of a checkpoint: files in parts, and a name for each tensor."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from ps_service.durability.tensors import TensorReader, TensorWriter, is_native
from ps_wire.errors import InvalidArgumentError


def test_tensors_come_back_under_their_names(tmp_path: Path) -> None:
    writer = TensorWriter(tmp_path)
    tensors = {"a": torch.arange(6.0).reshape(2, 3).T, "b": torch.tensor(True), "c": torch.empty(0, 3)}
    names = {name: writer.add(name, tensor) for name, tensor in tensors.items()}
    writer.flush()
    reader = TensorReader(tmp_path, os.listdir(tmp_path))
    assert all(torch.equal(reader.get(names[name]), tensor) for name, tensor in tensors.items())


def test_a_name_that_is_taken_gets_a_number(tmp_path: Path) -> None:
    writer = TensorWriter(tmp_path)
    assert [writer.add("w", torch.full((1,), float(i))) for i in range(3)] == ["w", "w~2", "w~3"]
    assert writer.add("w~2", torch.ones(1)) == "w~2~2"
    writer.flush()
    assert float(TensorReader(tmp_path, os.listdir(tmp_path)).get("w~3")) == 2.0


def test_a_part_is_written_when_it_is_large_enough(tmp_path: Path) -> None:
    writer = TensorWriter(tmp_path, part_bytes=16)
    written = []
    for i in range(5):
        writer.add(f"t{i}", torch.ones(2))
        written.append(len(list(tmp_path.iterdir())))
    assert written == [0, 1, 1, 2, 2]
    writer.flush()
    writer.flush()
    assert len(list(tmp_path.iterdir())) == 3


def test_an_added_tensor_is_a_copy(tmp_path: Path) -> None:
    writer, tensor = TensorWriter(tmp_path), torch.zeros(2)
    writer.add("t", tensor)
    tensor.fill_(1)
    writer.flush()
    assert TensorReader(tmp_path, os.listdir(tmp_path)).get("t").tolist() == [0.0, 0.0]


def test_a_tensor_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="no tensor 'none'"):
        TensorReader(tmp_path, os.listdir(tmp_path)).get("none")


def test_a_folder_that_cannot_be_written_is_an_error_of_the_disk(tmp_path: Path) -> None:
    writer = TensorWriter(tmp_path / "none")
    writer.add("t", torch.ones(1))
    with pytest.raises(OSError, match=r"tensors-00001\.safetensors"):
        writer.flush()


def test_complex_and_sparse_tensors_are_not_native() -> None:
    assert is_native(torch.ones(1, dtype=torch.bfloat16))
    assert not is_native(torch.ones(1, dtype=torch.complex64))
    assert not is_native(torch.ones(2).to_sparse())
