"""A canonical form of arguments, in which values that are equal in Python are equal."""

from __future__ import annotations

import math

from ps_wire.v1.values_pb2 import Item, Sequence, Value


def canonical(value: Value) -> Value:
    """The canonical form of arguments: equal ones have equal bytes.

    Numbers of equal value are equal, whatever their type. So are lists and tuples of equal items, and dicts with equal
    items in any order. A bool does not equal a number: an option that is True differs from one that is 1.
    """
    match value.WhichOneof("kind"):
        case "floating" if math.isfinite(value.floating) and value.floating.is_integer():
            return _integer(int(value.floating))
        case "big_integer":
            return _integer(int.from_bytes(value.big_integer, "little", signed=True))
        case "list":
            return _sequence(value.list)
        case "tuple":
            return _sequence(value.tuple)
        case "dict":
            found = Value()
            found.dict.SetInParent()
            items = [Item(key=canonical(item.key), value=canonical(item.value)) for item in value.dict.items]
            found.dict.items.extend(sorted(items, key=lambda item: item.key.SerializeToString(deterministic=True)))
            return found
        case "slice":
            found = Value()
            for name in ("start", "stop", "step"):
                getattr(found.slice, name).CopyFrom(canonical(getattr(value.slice, name)))
            return found
        case "record":
            found = Value()
            found.record.class_name = value.record.class_name
            found.record.state.CopyFrom(canonical(value.record.state))
            return found
        case _:
            return value


def _integer(number: int) -> Value:
    try:
        return Value(integer=number)
    except ValueError:
        return Value(big_integer=number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True))


def _sequence(sequence: Sequence) -> Value:
    found = Value()
    found.tuple.SetInParent()
    found.tuple.items.extend(map(canonical, sequence.items))
    return found
