"""Changes bytes, and messages by their descriptors, so that most of what comes out gets past the first check."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, Final

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

TEXTS: Final = [
    *("", "net", "weight", "bias", "forward", "step", "echo", "cpu", "cuda:0", "lr", "params", "items", "momentum"),
    *("torch.nn.Linear", "torch.optim.SGD", "torch.optim.Adam", "torch.optim.lr_scheduler.StepLR", "torch.add"),
    *("tests.fuzz.hosted.Net", "tests.fuzz.hosted.Echo", "torch.ones", "os.system", "../../etc/passwd", "__class__"),
    *("\0", "é" * 3, "x" * 4096, "0" * 32, "f" * 32, "%s%n", "ps0", "ps1", "a.b.c", "a" * 127 + "." + "b" * 127),
]

_SIGNED: Final = [0, 1, -1, 2, 3, 7, 127, 128, 255, 2**31 - 1, -(2**31), 2**31, 2**40, 2**62, 2**63 - 1, -(2**63)]
_UNSIGNED: Final = [0, 1, 2, 3, 7, 127, 128, 255, 2**31 - 1, 2**31, 2**40, 2**62, 2**63, 2**64 - 1]
_FLOATS: Final = [0.0, -0.0, 1.0, -1.0, 1e-310, 1e308, -1e308, math.nan, math.inf, -math.inf, 0.5, 3.0]

_LIMITS: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}

OWN_SESSION: Final = "0123abcd"
"""Stands for the first digits of the sender's own trainer id, until it is sent."""

# What would do to an innocent trainer what it may do to it today, have the fuzzer wait, or reach another machine.
_HARMLESS: Final[dict[str, list[Any]]] = {
    "wait_seconds": [0.0, 0.01, -2.0, math.nan, math.inf, -math.inf],
    "patience_seconds": [0.0, 0.01, -1.0, math.nan],
    "timeout_seconds": [0.0, 0.001, 0.5, -1.0, math.nan, math.inf, 1e300],
    "EvictRequest.session": ["", "zz", "f" * 40, OWN_SESSION, OWN_SESSION[:4] + "~1"],
    "EvictRequest.context": ["", "zz", OWN_SESSION + "/1", OWN_SESSION + "/99", "/", "f/f/f"],
    "EvictRequest.unused_seconds": [-1.0, math.nan, math.inf, 1e300],
    "address": ["", "127.0.0.1:1", "[::1]:1", "127.0.0.1", ":", "127.0.0.1:99999999", "\0"],
}


def changed_bytes(data: bytes, chance: random.Random) -> bytes:
    """One byte changed, or a few changed, left out, repeated, or cut off."""
    changed = bytearray(data)
    if not changed:
        return chance.randbytes(chance.randint(0, 9))
    if chance.random() < 0.5:
        # What only one byte tells apart is still a message more often than not.
        at = chance.randrange(len(changed))
        changed[at] = chance.choice([changed[at] ^ 1 << chance.randrange(8), chance.randrange(256)])
        return bytes(changed)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(changed))
        match chance.randrange(6):
            case 0:
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                changed[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF])
            case 2:
                del changed[at : at + chance.randint(1, 8)]
            case 3:
                changed[at:at] = changed[at : at + chance.randint(1, 32)]
            case 4:
                changed[at:at] = chance.randbytes(chance.randint(1, 4))
            case 5:
                del changed[max(at, 1) :]
        if not changed:
            changed += b"\0"
    return bytes(changed)


def change(message: Message, chance: random.Random, depth: int = 12) -> None:
    """Changes one field of a message, at any depth: most often one that is set, and mostly what it is about."""
    there = message.ListFields()
    fields = message.DESCRIPTOR.fields
    if not fields:
        return
    field = chance.choice(fields) if not there or chance.random() < 0.1 else chance.choice(there)[0]
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        message.ClearField(field.name)
    elif field.is_repeated:
        _change_list(message, field, chance, depth)
    elif field.message_type is None:
        setattr(message, field.name, _changed(field, getattr(message, field.name), chance))
    elif chance.random() < 0.06:
        message.ClearField(field.name)
    elif depth and (message.HasField(field.name) or chance.random() < 0.5):
        change(getattr(message, field.name), chance, depth - 1)
        getattr(message, field.name).SetInParent()
    else:
        getattr(message, field.name).CopyFrom(made(field.message_type, chance, 3))


def _change_list(message: Message, field: FieldDescriptor, chance: random.Random, depth: int) -> None:
    items = getattr(message, field.name)
    count = len(items)
    what = chance.randrange(10)
    if not count or what == 0:
        for _ in range(chance.choice([1, 1, 1, 2, 30])):
            if field.message_type is None:
                items.append(_changed(field, field.default_value or _zero(field), chance))
            else:
                items.add().CopyFrom(made(field.message_type, chance, 2))
        return
    at = chance.randrange(count)
    if what == 1:
        del items[at]
    elif what == 2:
        items.extend([items[at]] * chance.choice([1, 2, 50]))
    elif what == 3 and count > 1:
        taken = list(items)
        chance.shuffle(taken)
        copies = [type(each).FromString(each.SerializeToString()) if field.message_type else each for each in taken]
        del items[:]
        items.extend(copies)
    elif field.message_type is None:
        items[at] = _changed(field, items[at], chance)
    elif depth:
        change(items[at], chance, depth - 1)


def made(kind: Descriptor, chance: random.Random, depth: int) -> Any:
    """A message of a type with any of its fields."""
    message: Any = message_factory.GetMessageClass(kind)()
    for field in kind.fields:
        if chance.random() < 0.5 or (field.message_type is not None and not depth):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.is_repeated:
            items = getattr(message, field.name)
            for _ in range(chance.randrange(3)):
                if field.message_type is None:
                    items.append(_changed(field, _zero(field), chance))
                else:
                    items.add().CopyFrom(made(field.message_type, chance, depth - 1))
        elif field.message_type is None:
            setattr(message, field.name, _changed(field, _zero(field), chance))
        else:
            getattr(message, field.name).CopyFrom(made(field.message_type, chance, depth - 1))
    return message


def _zero(field: FieldDescriptor) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return b"" if field.type == FieldDescriptor.TYPE_BYTES else ""
    return 0


def _changed(field: FieldDescriptor, value: Any, chance: random.Random) -> Any:
    """Another value of a field."""
    harmless = _HARMLESS.get(field.name) or _HARMLESS.get(f"{field.containing_type.name}.{field.name}")
    if harmless is not None:
        return chance.choice(harmless)
    kind = field.cpp_type
    if field.type == FieldDescriptor.TYPE_BYTES:
        return changed_bytes(value, chance) if value else chance.choice([b"\0" * 8, b"\0" * 16, chance.randbytes(16)])
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return _text(value, chance)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return not value
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return chance.choice([(value + 1) % 64, 0, chance.randrange(64), 2**31 - 1, -1])
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return chance.choice([*_FLOATS, value * 2, -value])
    low, high = _LIMITS[kind]
    found = chance.choice([value + 1, value - 1, value ^ 1 << chance.randrange(31), *(_SIGNED if low else _UNSIGNED)])
    return min(max(found, low), high)


def _text(value: str, chance: random.Random) -> str:
    if not value or chance.random() < 0.5:
        return chance.choice(TEXTS)
    at = chance.randrange(len(value))
    return chance.choice(
        [value[:at], value + value, value[:at] + chr(chance.choice([0, 46, 47, 126, 955, 0x1F600])) + value[at + 1 :]]
    )


def disordered(items: Sequence[Any], chance: random.Random) -> list[Any]:
    """Items of which one was left out, sent twice, or exchanged with another."""
    found = list(items)
    if not found:
        return found
    at, other = chance.randrange(len(found)), chance.randrange(len(found))
    match chance.randrange(3):
        case 0:
            del found[at]
        case 1:
            found.insert(other, found[at])
        case 2:
            found[at], found[other] = found[other], found[at]
    return found
