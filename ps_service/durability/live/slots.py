"""Records of objects with slots for values that are read later than the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ps_service.durability import value_files
from ps_service.durability.described import tensors_of
from ps_service.durability.live.parts import Part
from ps_wire.v1.values_pb2 import Value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ps_service.durability.live.tensor_files import TensorFiles
    from ps_service.durability.value_files import Tensors
    from ps_service.hosting.objects import HostedObject
    from ps_service.training.optimizers import HostedOptimizer
    from ps_wire.codec.payload import Buffer


class Stored(NamedTuple):
    """A value whose tensors are in files, under these names."""

    message: Value
    names: list[str]

    def put(self, message: Value, names: Any) -> None:
        """Puts it into a record, which has a list of names for all of its tensors."""
        message.CopyFrom(self.message)
        for tensor in tensors_of(message):
            if tensor.nbytes:
                name = self.names[tensor.offset]
                tensor.offset = len(names)
                names.append(name)


def stored(value: Mapping[Any, Any], tensors: Tensors, prefix: str) -> Stored:
    """Stores a dict. Raises as `value_files.store`."""
    found = Stored(Value(), [])
    value_files.store(value, found.message, found.names, tensors, prefix)
    return found


def only_item(found: Stored) -> Stored:
    """The value of the only item of a dict."""
    return Stored(found.message.dict.items[0].value, found.names)


class Slot(NamedTuple):
    """Where a record has a value, with its list of names; and the name that a tensor there should have."""

    message: Value
    names: Any
    prefix: str
    key: str


class StatesSlot(NamedTuple):
    """Where the record of an optimizer has what that keeps for its parameters."""

    message: Value
    names: Any
    prefix: str

    def put(self, place: int, entry: Stored) -> None:
        """Puts what it keeps for the parameter at that place."""
        item = self.message.dict.items.add()
        item.key.integer = place
        entry.put(item.value, self.names)

    def sort(self, places: Sequence[int]) -> None:
        """Has the entries in the order of some places. One that it does not have is empty: it was made later, and when
        it is made again, it is to be where it was."""
        there = {item.key.integer: item for item in self.message.dict.items}
        sorted_items = Value()
        for place in dict.fromkeys((*places, *there)):
            item = sorted_items.dict.items.add()
            item.key.integer = place
            item.value.dict.SetInParent()
            if place in there:
                item.value.CopyFrom(there[place].value)
        self.message.dict.CopyFrom(sorted_items.dict)


class States(NamedTuple):
    """In the state of an optimizer, what it keeps for its parameters."""

    optimizer: HostedOptimizer


class Slotted(dict[str, Any]):
    """A state, some of whose values are parts or `States`."""


class SlottedStorage:
    """Stores records in the files of a checkpoint, and leaves slots in them: `values` for parts, by the `id` of their
    parameter, `states` for what optimizers keep, by their number, and `tables` for the blocks of these, which have a
    hosted table in their place."""

    def __init__(self, tensors: TensorFiles) -> None:
        self._tensors = tensors
        self.values: dict[int, list[Slot]] = {}
        self.states: dict[int, StatesSlot] = {}
        self.tables: list[tuple[HostedObject, Slot]] = []

    def store(self, value: Any, message: Value, names: Any, prefix: str) -> None:
        """As `Storage.store`."""
        if not isinstance(value, Slotted):
            value_files.store(value, message, names, self._tensors, prefix)
            return
        message.dict.SetInParent()
        parts: list[tuple[Part, Slot]] = []
        for key, each in value.items():
            if isinstance(each, States):
                item = message.dict.items.add()
                item.key.text = key
                item.value.dict.SetInParent()
                self.states[each.optimizer.number] = StatesSlot(item.value, names, prefix)
            elif isinstance(each, Part):
                item = message.dict.items.add()
                item.key.text = key
                parts.append((each, Slot(item.value, names, prefix, key)))
            else:
                only = Value()
                value_files.store({key: each}, only, names, self._tensors, prefix)
                message.dict.items.append(only.dict.items[0])
        for part, slot in parts:
            self.values.setdefault(id(part.parameter), []).append(slot)

    def store_table(self, state: Mapping[str, Any], message: Value, names: Any, prefix: str) -> None:
        """As `Storage.store_table`."""
        message.dict.SetInParent()
        for key, each in state.items():
            item = message.dict.items.add()
            item.key.text = key
            if key == value_files.BLOCKS:
                self.tables.append((each, Slot(item.value, names, prefix, key)))
            else:
                value_files.store(each, item.value, names, self._tensors, f"{prefix}/{key}")

    def add(self, name: str, content: Buffer) -> str:
        """As `Storage.add`."""
        return value_files.FileStorage(self._tensors).add(name, content)
