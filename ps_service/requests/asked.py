"""What a request for a named object asks for, in a form in which requests for the same are equal."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ps_service.hosting.fingerprints import Fingerprint
from ps_wire.codec.messages import messages_in
from ps_wire.codec.values import Encoder
from ps_wire.v1.values_pb2 import Item, Tensor, Value

if TYPE_CHECKING:
    from ps_service.requests.context import RequestContext
    from ps_wire.codec.payload import Buffer
    from ps_wire.refs import Ref

_NOT_COMPARED: Final = {"replace", "source", "default_seed", "joins_with_step", "policy", "owners", "layout"}
"""Fields that do not tell whether two requests ask for the same object. Who comes later may leave out the policy."""

_FIRST: Final = Value(text="its parameters, or its optimizer")
"""Stands for the first argument of an optimizer or a scheduler, for which the request has a field of its own."""


def fingerprint(ctx: RequestContext, cls: type, request: Any, arguments: Mapping[str, Any]) -> Fingerprint:
    """The fingerprint of a request for an object of a class; the `arguments` are for messages. It does not tell whether
    an argument was given by position or by name, nor whether a default was given or left out."""
    same = type(request)()
    same.CopyFrom(request)
    same.class_name = ctx.engine.allowlist.one_name_of(cls, request.class_name)
    fields = same.DESCRIPTOR.fields_by_name
    for field in _NOT_COMPARED.intersection(fields.keys()):
        same.ClearField(field)
    if "options" in fields:
        _bind(cls, Value(), same.options, (_FIRST,))
        _clear_equal(same.groups, same.options)
    else:
        _bind(cls, same.args, same.kwargs, (_FIRST,) if "optimizer" in fields else ())
    for value in messages_in(same, Value):
        value.CopyFrom(canonical(value))
    tensors = list(_take_tensors(same, ctx.payload))
    return Fingerprint.of(
        (same.SerializeToString(deterministic=True), *tensors), {"class": same.class_name, **arguments}
    )


def called(
    cls: type, args: Sequence[Any], kwargs: Mapping[str, Any], first: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The arguments of a constructor by name, with its defaults, where its signature tells them. It takes a value
    before them, which `first` has under the name that messages call it."""
    first = first or {}
    try:
        bound = inspect.signature(cls).bind(*first.values(), *args, **kwargs)
    except (TypeError, ValueError):  # they do not fit, or the class tells no signature
        return {f"argument {number}": value for number, value in enumerate(args, 1)} | dict(kwargs)
    bound.apply_defaults()
    return {**first, **dict(list(bound.arguments.items())[len(first) :])}


def grouped(ctx: RequestContext, groups: Sequence[tuple[Sequence[Ref], Mapping[str, Any]]]) -> dict[str, Any]:
    """The parameters, and the options of each group that has some of its own."""
    own = {f"group {number}": options for number, (_, options) in enumerate(groups) if options}
    listed = [(ctx.engine.registry.find(ref).name, ref.parameter) for parameters, _ in groups for ref in parameters]
    in_order = [f"{name}.{parameter}" if name else parameter for name, parameter in listed]
    return {"parameters": len(listed), "parameters in the order": in_order, **own}


def _bind(cls: type, args: Value, kwargs: Value, first: Sequence[Value]) -> None:
    """Gives all arguments their names, and adds the defaults of those that were left out. Changes nothing if they do
    not fit the class, or that tells no signature."""
    try:
        signature = inspect.signature(cls)
        bound = signature.bind(
            *first, *(args.list.items or args.tuple.items), **{item.key.text: item.value for item in kwargs.dict.items}
        )
    except (TypeError, ValueError):
        return
    rest: list[Value] = []
    named: dict[str, Value] = {}
    for position, (name, parameter) in enumerate(signature.parameters.items()):
        given = bound.arguments.get(name)
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest += given or ()
        elif parameter.kind is parameter.VAR_KEYWORD:
            named.update(given or {})
        elif position >= len(first) and (value := _default(parameter) if given is None else given) is not None:
            named[name] = value
    args_written, kwargs_written = Value(), Value()
    args_written.tuple.SetInParent()
    args_written.tuple.items.extend(rest)
    kwargs_written.dict.SetInParent()
    kwargs_written.dict.items.extend(Item(key=Value(text=name), value=named[name]) for name in sorted(named))
    args.CopyFrom(args_written)
    kwargs.CopyFrom(kwargs_written)


def _default(parameter: inspect.Parameter) -> Value | None:
    """The message for a default. None if there is none, or it cannot be sent, so that nobody can have given it."""
    if parameter.default is parameter.empty:
        return None
    try:
        return Encoder(None).encode(parameter.default)
    except Exception:  # what a class of the program raises that is sent by value
        return None


def _clear_equal(groups: Any, options: Value) -> None:
    """Removes the options of groups that say what holds for all."""
    known = {item.key.text: canonical(item.value) for item in options.dict.items}
    for group in groups:
        own = [item for item in group.options.dict.items if known.get(item.key.text) != canonical(item.value)]
        group.options.dict.SetInParent()
        del group.options.dict.items[:]
        group.options.dict.items.extend(own)


def _take_tensors(request: Any, payload: Buffer | None) -> Iterator[bytes | memoryview]:
    """Takes the bytes of tensors out of a request: where in the payload they are depends on how they were given."""
    for tensor in messages_in(request, Tensor):
        data: bytes | memoryview = tensor.data
        if payload is not None and not data:
            data = payload[tensor.offset : tensor.offset + tensor.nbytes].data
        tensor.ClearField("data")
        tensor.offset, tensor.nbytes = 0, len(data)
        yield data


def canonical(value: Value) -> Value:
    """The canonical form of arguments: equal ones have equal bytes.

    Numbers of equal value are equal, whatever their type. So are lists and tuples of equal items, and dicts with equal
    items in any order. A bool does not equal a number: an option that is True differs from one that is 1.
    """
    found = Value()
    match value.WhichOneof("kind"):
        case "floating" if math.isfinite(value.floating) and value.floating.is_integer():
            return _canonical_integer(int(value.floating))
        case "big_integer":
            return _canonical_integer(int.from_bytes(value.big_integer, "little", signed=True))
        case "list" | "tuple" as kind:
            found.tuple.SetInParent()
            found.tuple.items.extend(map(canonical, getattr(value, kind).items))
        case "dict":
            found.dict.SetInParent()
            items = [Item(key=canonical(item.key), value=canonical(item.value)) for item in value.dict.items]
            found.dict.items.extend(sorted(items, key=lambda item: item.key.SerializeToString(deterministic=True)))
        case "slice":
            for name in ("start", "stop", "step"):
                getattr(found.slice, name).CopyFrom(canonical(getattr(value.slice, name)))
        case "table":
            found.table.CopyFrom(value.table)
            found.table.ClearField("owners")  # rows move
        case "record":
            found.record.class_name = value.record.class_name
            found.record.state.CopyFrom(canonical(value.record.state))
        case _:
            return value
    return found


def _canonical_integer(number: int) -> Value:
    try:
        return Value(integer=number)
    except ValueError:
        return Value(big_integer=number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True))
