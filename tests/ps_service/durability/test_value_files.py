"""Values and their tensors go into files and come back bit for bit."""

from __future__ import annotations

import gc
import os
import tempfile
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from safetensors import safe_open

from ps_service.durability import value_files
from ps_service.durability.tensors import TensorReader, TensorWriter
from ps_wire.codec.trees import mapped
from ps_wire.errors import InvalidArgumentError
from ps_wire.v1.checkpoint_pb2 import ObjectRecord
from tests.ps_wire import conftest as _rare_tensors_warned_of  # noqa: F401
from tests.ps_wire import strategies
from tests.ps_wire.exact import same


def through_files(values: list[Any], folder: Path, part_bytes: int = 1 << 20) -> list[Any]:
    """The values after they were written and read."""
    writer = TensorWriter(folder, part_bytes)
    records = [ObjectRecord() for _ in values]
    for record, value in zip(records, values, strict=True):
        value_files.store(value, record.state, record.tensors, writer, "net")
    writer.flush()
    reader = TensorReader(folder, os.listdir(folder))
    parsed = [ObjectRecord.FromString(record.SerializeToString()) for record in records]
    return [value_files.load(record.state, record.tensors, reader) for record in parsed]


@given(strategies.values)
def test_whatever_travels_can_be_kept(value: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (found,) = through_files([value], Path(folder))
    # A copy of a bool whose bits are neither 0 nor 1 has the bits of True.
    assert same(found, mapped(value, lambda each: each.clone() if each.dtype == torch.bool else each))


def test_tensors_that_were_loaded_are_aligned_and_no_memory_of_the_file(tmp_path: Path) -> None:
    value = [torch.ones(1, dtype=torch.uint8), *(torch.ones(1, dtype=torch.complex128) for _ in range(4))]
    (found,) = through_files([value], tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert [tensor.data_ptr() % 16 for tensor in found] == [0] * len(value)
    for tensor in found:
        tensor.zero_()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files
    (again,) = through_files([value], tmp_path)
    assert same(again, value)


def names_in(folder: Path) -> dict[str, list[str]]:
    return {path.name: sorted(safe_open(path, "pt").keys()) for path in sorted(folder.iterdir())}


def test_others_find_a_models_tensors_under_their_names(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    through_files([net.state_dict()], tmp_path)
    (names,) = names_in(tmp_path).values()
    assert names == sorted(f"net/{name}" for name in net.state_dict())
    with safe_open(tmp_path / "tensors-00001.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor("net/0.weight"), net[0].weight)
        assert file.get_tensor("net/1.num_batches_tracked").dtype == torch.int64


def test_large_states_are_written_in_parts(tmp_path: Path) -> None:
    value = {f"t{i}": torch.full((100,), float(i)) for i in range(10)}
    (found,) = through_files([value], tmp_path, part_bytes=1000)
    assert same(found, value)
    assert [len(names) for names in names_in(tmp_path).values()] == [3, 3, 3, 1]


def test_tensors_of_one_name_are_told_apart(tmp_path: Path) -> None:
    values = [{"w": torch.zeros(1)}, {"w": torch.ones(2)}, {"": {"w": torch.ones(3)}}]
    assert same(through_files(values, tmp_path), values)


def test_what_is_kept_is_a_copy(tmp_path: Path) -> None:
    tensor = torch.zeros(3)
    writer, record = TensorWriter(tmp_path), ObjectRecord()
    value_files.store(tensor, record.state, record.tensors, writer, "net")
    tensor.add_(1)
    writer.flush()
    assert torch.equal(
        value_files.load(record.state, record.tensors, TensorReader(tmp_path, os.listdir(tmp_path))), torch.zeros(3)
    )


def test_nothing_of_an_invalid_value_is_stored(tmp_path: Path) -> None:
    writer, record = TensorWriter(tmp_path), ObjectRecord()
    with pytest.raises(InvalidArgumentError, match=r"a builtins\.object cannot be sent"):
        value_files.store([torch.ones(2), object()], record.state, record.tensors, writer, "net")
    writer.flush()
    assert not list(tmp_path.iterdir())


def test_a_record_that_names_other_tensors_is_refused(tmp_path: Path) -> None:
    writer, record = TensorWriter(tmp_path), ObjectRecord()
    value_files.store([torch.ones(2), torch.ones(3)], record.state, record.tensors, writer, "net")
    writer.flush()
    reader = TensorReader(tmp_path, os.listdir(tmp_path))
    for names, reason in ((["net/0", "net/7"], "has no tensor 'net/7'"), (["net/0"], "names only 1 tensors"), (
        ["net/0", "net/0"], "has 8 bytes instead of 12")):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match=reason):
            value_files.load(record.state, names, reader)


def test_the_strides_of_tensors_are_kept(tmp_path: Path) -> None:
    image = torch.arange(120.0).reshape(2, 3, 4, 5)
    value = [image.contiguous(memory_format=torch.channels_last), image.permute(3, 1, 0, 2), image[:, :, ::2].half()]
    (found,) = through_files([value], tmp_path)
    assert same(found, value)
    assert [each.stride() for each in found[:2]] == [each.stride() for each in value[:2]]


def test_a_value_that_was_stored_is_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    value = {"rows": torch.ones(3)}
    alive = weakref.ref(value["rows"])
    gc.disable()
    try:
        through_files([value], tmp_path)
        value.clear()
        assert alive() is None
    finally:
        gc.enable()
