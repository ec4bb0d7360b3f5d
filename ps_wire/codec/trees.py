"""Walks nested lists, tuples, dicts, slices and registered records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch

from ps_wire.codec.records import codec_of
from ps_wire.refs import Ref

_PLAIN: Final = frozenset((tuple, list, dict))


def leaves_in(value: Any) -> Iterator[Any]:
    """The leaves of a tree, in the order in which the codec encodes them."""
    inside = _inside(value)
    if inside is None:
        yield value
    else:
        for part in inside:
            yield from leaves_in(part)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a tree, in the order in which the codec encodes them."""
    return (each for each in leaves_in(value) if isinstance(each, torch.Tensor))


def parts_of(value: Any) -> Iterator[Any]:
    """The containers, records and leaves of a tree, each container once. The tree may contain itself, at any depth."""
    waiting, seen = [value], dict[int, Any]()
    while waiting:
        part = waiting.pop()
        inside = _inside(part)
        if inside is not None:
            if id(part) in seen:
                continue
            seen[id(part)] = part  # another object must not get its id
            waiting += inside
        yield part


def _inside(part: Any) -> list[Any] | None:
    """What a container or record holds, in the order in which it is encoded; None for a leaf."""
    if isinstance(part, (torch.Tensor, Ref)):
        return None
    # Before the kinds of containers: what is sent of a list or NamedTuple may be in another order than its items.
    codec = None if type(part) in _PLAIN else codec_of(type(part))
    if codec is not None:
        return [codec.encode(part)]
    if isinstance(part, (list, tuple)):
        return list(part)
    if isinstance(part, dict):
        return [each for item in part.items() for each in item]
    return [part.start, part.stop, part.step] if isinstance(part, slice) else None


def once(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """The same change, which gives the same tensor when it is asked again for one."""
    # The keys are alive, so that no `id()` is used again.
    known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        found = known.get(id(tensor))
        if found is None:
            found = known[id(tensor)] = tensor, change(tensor)
        return found[1]

    return changed


def tied(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state with one object for all tensors that are the same elements of the same memory, as tied parameters are."""
    known: dict[Any, torch.Tensor] = {}

    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or not value.numel():
            return value
        place = value.device, value.data_ptr(), value.dtype, value.shape, value.stride()
        return known.setdefault((*place, value.is_conj(), value.is_neg()), value)

    return {name: one(value) for name, value in state.items()}


def mapped(
    value: Any, change: Callable[[torch.Tensor], torch.Tensor], other: Callable[[Any], Any] | None = None
) -> Any:
    """A copy of a tree with each tensor replaced by `change(tensor)`, once if it occurs several times, and each other
    leaf by `other(leaf)`."""
    return change(value) if isinstance(value, torch.Tensor) else _mapped(value, once(change), other)


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor], other: Callable[[Any], Any] | None) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    codec = None if type(value) in _PLAIN else codec_of(type(value))
    if codec is not None:
        return codec.decode(_mapped(codec.encode(value), change, other))
    if isinstance(value, list):
        return [_mapped(item, change, other) for item in value]
    if isinstance(value, dict):
        return {_mapped(key, change, other): _mapped(item, change, other) for key, item in value.items()}
    if isinstance(value, tuple) and not isinstance(value, Ref):
        return tuple([_mapped(item, change, other) for item in value])
    if isinstance(value, slice):
        return slice(*[_mapped(part, change, other) for part in (value.start, value.stop, value.step)])
    return value if other is None else other(value)
