"""The record of an object: the request that makes it again, and its state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from ps_service.durability import rounds
from ps_service.durability.object_states import CannotBeKept, steps_of
from ps_service.hosting.pinned import Pinned
from ps_service.measures.curve_messages import message_of
from ps_service.training.optimizers import HostedOptimizer
from ps_wire.codec.trees import parts_of
from ps_wire.errors import PsError
from ps_wire.v1 import checkpoint_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from ps_service.hosting.objects import HostedObject
    from ps_wire.codec.payload import Buffer
    from ps_wire.v1.values_pb2 import Value


class Storage(Protocol):
    """Where the tensors of records go: the files of a checkpoint, or the payload of a record of the log. `names` gets a
    name for each tensor, if they have names there, and `prefix` is what these begin with."""

    def store(self, value: Any, message: Value, names: Any, prefix: str) -> None:
        """Encodes a value. Raises `InvalidArgumentError` if it holds something that cannot be encoded."""

    def store_table(self, state: Mapping[str, Any], message: Value, names: Any, prefix: str) -> None:
        """Encodes the result of a table's `state_dict`."""

    def add(self, name: str, content: Buffer) -> str:
        """Adds bytes; returns the name under which they are found again."""


class Source(Protocol):
    """Where the tensors of records come from."""

    def load(self, message: Value, names: Sequence[str]) -> Any:
        """Decodes a value. Raises `InvalidArgumentError` if a class is not registered, or a tensor is missing."""

    def load_table(self, message: Value, names: Sequence[str]) -> dict[str, Any]:
        """Decodes the state of a table."""

    def find(self, name: str) -> Buffer | None:
        """The bytes of that name; None if it is empty."""


def object_record(
    hosted: HostedObject,
    storage: Storage,
    read: Callable[[HostedObject], Any],
    is_kept: Callable[[HostedObject], bool],
    rounds_of: Callable[[HostedOptimizer], rounds.Read] = rounds.read,
    steps: Callable[[HostedObject], Mapping[str, int]] = steps_of,
) -> pb.ObjectRecord:
    """The record of an object, whose state `read` returns, `rounds_of` its rounds if it is an optimizer, and `steps`
    those of its parameters if it is a module. Raises `CannotBeKept` if it cannot be made again, because something that
    it was made from is not kept, `InvalidArgumentError`, and what `read` raises."""
    record = pb.ObjectRecord(object_id=hosted.ref.object_id, name=hosted.name, class_name=hosted.class_name)
    record.identity, record.namespace = hosted.account
    prefix = hosted.name or f"{hosted.class_name.rpartition('.')[2]}-{hosted.ref.object_id[:8]}"
    spec = hosted.creation_spec
    if isinstance(hosted.value, Pinned):
        raise CannotBeKept("it belongs to a snapshot, which is in memory alone; ps-service export --snapshot keeps it")
    if spec is None:
        if isinstance(hosted.value, nn.Parameter):
            raise CannotBeKept("it is part of another object; handles to parts are not saved")
        if any(isinstance(part, torch.Tensor) and part.requires_grad for part in parts_of(hosted.value)):
            raise CannotBeKept("it holds a tensor that may be trained, and that other objects may share")
        storage.store(hosted.value, record.value, record.tensors, prefix)
        return record
    if not spec.is_whole:
        raise CannotBeKept("it was constructed with a handle to another owner's object")
    for dependency in spec.dependencies:
        if not is_kept(dependency):
            raise CannotBeKept(f"it was constructed with {dependency}, which is not saved")
    store = storage.store_table if hosted.is_table else storage.store
    store(read(hosted), record.state, record.tensors, prefix)
    getattr(record, spec.operation).CopyFrom(spec.request)
    if spec.payload is not None:
        record.payload = storage.add(f"{prefix}/arguments", spec.payload)
    if isinstance(hosted.value, HostedOptimizer):

        def keep(value: Any, message: Value) -> None:
            storage.store(value, message, record.tensors, f"{prefix}/open round")

        rounds_of(hosted.value).write(record, keep)
        record.beside.update(hosted.value.beside)
    if isinstance(hosted.value, nn.Module) or hosted.is_table:
        frozen = [name for name, parameter in hosted.parameters.items() if not parameter.requires_grad]
        record.frozen.CopyFrom(pb.Frozen(parameters=frozen))
    if isinstance(hosted.value, nn.Module):
        record.steps.update(steps(hosted))
    return record


class Records:
    """Makes the records of objects. `left_out` has name, class and reason of each that had to be left out."""

    def __init__(
        self,
        storage: Storage,
        read: Callable[[HostedObject], Any],
        rounds_of: Callable[[HostedOptimizer], rounds.Read] = rounds.read,
        steps: Callable[[HostedObject], Mapping[str, int]] = steps_of,
    ) -> None:
        self._storage = storage
        self._read = read
        self._rounds_of = rounds_of
        self._steps = steps
        self._seen: set[str] = set()
        self._kept: dict[str, pb.ObjectRecord] = {}
        self.left_out: list[dict[str, str]] = []

    def records(self, objects: Sequence[HostedObject]) -> list[pb.ObjectRecord]:
        """The records of all objects that can be constructed again, each after its dependencies."""
        listed = {hosted.ref.object_id for hosted in objects}
        for hosted in objects:
            self._visit(hosted, listed)
        return list(self._kept.values())

    def _is_kept(self, hosted: HostedObject) -> bool:
        return hosted.ref.object_id in self._kept

    def _visit(self, hosted: HostedObject, listed: Container[str]) -> None:
        if hosted.ref.object_id in self._seen:
            return
        self._seen.add(hosted.ref.object_id)
        for dependency in hosted.creation_spec.dependencies if hosted.creation_spec is not None else ():
            self._visit(dependency, listed)
        try:
            record = object_record(hosted, self._storage, self._read, self._is_kept, self._rounds_of, self._steps)
        except OSError:
            raise
        except (PsError, CannotBeKept) as error:
            self.left_out.append({"name": hosted.name, "class": hosted.class_name, "why": str(error)})
            return
        if isinstance(hosted.value, HostedOptimizer):
            record.curves.extend(map(message_of, hosted.value.reported.told()))
        if hosted.ref.object_id not in listed:
            record.dependency_only, record.name = True, ""
        self._kept[hosted.ref.object_id] = record
