"""The parameters and buffers of a replica, and which of the owner's values they have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from ps_wire.codec import dtypes
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.compression.codec import Encoded
from ps_wire.compression.registry import check_suitable, decode
from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from ps_wire.codec.payload import PayloadReader
    from ps_wire.compression.choice import Choice
    from ps_wire.v1.operations_pb2 import ParameterInfo, PullReply, PullRequest
    from trainer_client.replicas.protocols import OpenPass

_COPIES: Final = WeakIdKeyDictionary()
"""The parameters of all replicas, as long as they live."""

_Link = tuple[dict[str, Any], str, object, str]
"""A dict of entries, a name in it and what was there, and a dotted name from the module."""


def is_copy(tensor: torch.Tensor) -> bool:
    """Whether a local parameter is that of a replica."""
    return tensor in _COPIES


class Tensors:
    """The parameters and buffers of a local module, in the order of the owner's module; tied parameters once. Values
    that arrive become the data of parameters without a copy where dtype, device and strides allow it, but only of one
    message, as one parameter keeps all of its memory alive. `dtypes` are those on the owner, `steps` has the number of
    steps before each value was read, and `readings` says how often values were taken over."""

    def __init__(self, module: nn.Module, infos: Sequence[ParameterInfo], pulls: Choice | None = None) -> None:
        self._module = module
        self.names = [each.name for each in infos]
        self.dtypes = [dtypes.from_wire(each.dtype) for each in infos]
        self.parameters = _matching(module, infos, self.dtypes)
        for each in self.parameters:
            _COPIES[each] = True
        self.steps = [0] * len(infos)
        self.readings = 0
        self._marks = [0] * len(infos)
        self._buffers_mark = b""
        self._lent: set[int] = set()
        self._asked = 0
        self._taken = 0
        self._anchors: list[torch.Tensor] = []
        self._links = _links(module, self.parameters)
        # The values as they were taken over, as far as torch tells whether they have changed since.
        self._states = [_state(each) for each in self.parameters]
        self._codecs, self._codec_of = ([], []) if pulls is None else self._chosen(pulls)

    @property
    def is_anchored(self) -> bool:
        """Whether the pulled values are kept, because local steps change the parameters."""
        return bool(self._anchors)

    def check_unwritten(self) -> None:
        """Raises `InvalidArgumentError` if a parameter was written to since the last pull, and not by local steps. To
        move or convert a parameter, or to assign its `.data`, counts no version, and is no write."""
        if self.is_anchored:
            return
        for name, parameter, (version, *_) in zip(self.names, self.parameters, self._states, strict=True):
            if parameter._version != version:
                raise InvalidArgumentError(
                    f"{name!r} was written to in this replica since the last pull, and local steps begin with the "
                    "owner's parameters: call pull() of the replica first, which brings them. To begin with other "
                    "values, load them on the owner before that pull, with load_state_dict() of the module's handle"
                )

    def anchor(self) -> None:
        """Keeps copies of the present values, and of those that are pulled from now on. The next pull brings those that
        are not as they were pulled, because they were moved or converted."""
        if not self._anchors:
            for position in self._changed():
                self._marks[position] = 0
            self._anchors = [each.detach().clone() for each in self.parameters]

    def gradients(self, context: OpenPass | None = None) -> list[torch.Tensor | None]:
        """`.grad` of each parameter, or its gradient in a pass."""
        self._check_links()
        if context is not None:
            return [context.gradient(each) for each in self.parameters]
        return [None if each.grad is None else each.grad.detach() for each in self.parameters]

    def differences(self) -> list[torch.Tensor | None]:
        """What local steps have taken from each parameter since it was pulled; None for frozen parameters."""
        found: list[torch.Tensor | None] = []
        for name, parameter, anchor in zip(self.names, self.parameters, self._anchors, strict=True):
            if parameter.dtype != anchor.dtype or parameter.device != anchor.device:
                raise InvalidArgumentError(
                    f"{name!r} was {anchor.dtype} on {anchor.device} when local steps began, and is {parameter.dtype} "
                    f"on {parameter.device} now: move the replica before"
                )
            found.append(anchor - parameter.detach() if parameter.requires_grad else None)
        return found

    def ask(self, request: PullRequest) -> int:
        """Writes into a request what the replica has; returns the number of the request. Parameters that were written
        to here count as not there, so that a pull brings them, too."""
        self._check_links()
        if any(self._marks):
            if not self.is_anchored:
                for position in self._changed():
                    self._marks[position] = 0
            request.marks.extend(self._marks)
        request.buffers_mark = self._buffers_mark
        if self._codecs:
            Encoder(None).encode_into(request.codecs, self._codecs)
            request.codec_of.extend(self._codec_of)
        self._asked += 1
        return self._asked

    @torch.inference_mode(False)  # what is made in inference mode has no place in a backward
    def take(self, number: int, reply: PullReply, payload: PayloadReader) -> int:
        """Takes over the values of the answer to a request: all, or none if a later request was answered before.
        Returns how many parameters have changed. If it raises, because the answer does not fit, none has."""
        decoder = Decoder(payload)
        values = decoder.decode(reply.parameters) if reply.HasField("parameters") else []
        buffers = decoder.decode(reply.buffers) if reply.HasField("buffers") else None
        positions = list(reply.positions)
        if not len(positions) == len(values) == len(reply.marks) == len(reply.steps):
            raise InvalidArgumentError("the answer to a pull has parameters, marks and steps of different numbers")
        values = [self._checked(position, value) for position, value in zip(positions, values, strict=True)]
        if number < self._taken:
            return 0
        self._taken = number
        self.readings += 1
        self._set_all(positions, values)
        self._anchor_again(set(positions))
        for position, mark, steps in zip(positions, reply.marks, reply.steps, strict=True):
            self._marks[position], self.steps[position] = mark, steps
        self._note(positions)
        if buffers is not None:
            self._set_buffers(buffers)
            self._buffers_mark = reply.buffers_mark
        return len(positions)

    def _chosen(self, pulls: Choice) -> tuple[list[list[Any]], list[int]]:
        """The codecs for pulls as messages have them, and the number of that of each parameter; 0 for none."""
        for codec in pulls.codecs:
            check_suitable(codec)
        chosen = [pulls.codec_for(*each) for each in zip(self.names, self.parameters, strict=True)]
        numbers = {each: number for number, each in enumerate(dict.fromkeys(filter(None, chosen)), 1)}
        codecs = [[each.name, each.parameters()] for each in numbers]
        return codecs, [0 if each is None else numbers[each] for each in chosen]

    def _checked(self, position: int, value: Any) -> torch.Tensor:
        """The value of a parameter in an answer."""
        if position >= len(self.names):
            raise InvalidArgumentError(f"the owner sent parameter {position} of {len(self.names)}")
        shape = self.parameters[position].shape
        if isinstance(value, Encoded):
            value = decode(value, torch.empty((), dtype=self.dtypes[position], device="cpu").expand(shape))
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.shape != shape:
            raise InvalidArgumentError(f"the owner sent no tensor of shape {tuple(shape)} for {self.names[position]!r}")
        return value

    def _set_all(self, positions: Sequence[int], values: Sequence[torch.Tensor]) -> None:
        changed = set(self._changed())
        for position in self._lent.difference(positions):
            parameter = self.parameters[position]
            parameter.data = parameter.data.clone()
            if position not in changed:
                self._note([position])
        if positions:
            self._lent = set()
        for position, value in zip(positions, values, strict=True):
            parameter = self.parameters[position]
            if _may_replace(parameter, value):
                parameter.data = value
                self._lent.add(position)
            else:
                with torch.no_grad():
                    parameter.copy_(value)

    def _changed(self) -> list[int]:
        """Positions of parameters that have been written to, moved or converted since `_note`."""
        return [i for i, each in enumerate(self.parameters) if _state(each) != self._states[i]]

    def _check_links(self) -> None:
        """Raises `InvalidArgumentError` if a parameter is not where it was."""
        for entries, name, value, path in self._links:
            if entries.get(name) is not value:
                raise InvalidArgumentError(
                    f"{path!r} of this replica is not the parameter any more that it was when the replica was made: it "
                    "was replaced, or parametrized. Make a replica of the module as it is now: net.replica(function)"
                )

    def _note(self, positions: Iterable[int]) -> None:
        for position in positions:
            self._states[position] = _state(self.parameters[position])

    def _anchor_again(self, brought: set[int]) -> None:
        """Keeps copies of the values that were brought, and sets the other parameters back to those of before."""
        with torch.no_grad():
            for position, anchor in enumerate(self._anchors):
                if position in brought:
                    anchor.copy_(self.parameters[position])
                else:
                    self.parameters[position].copy_(anchor)

    def _set_buffers(self, buffers: dict[str, torch.Tensor]) -> None:
        known = dict(self._module.named_buffers())
        with torch.no_grad():
            for name, value in buffers.items():
                own = known.get(name)
                if own is not None and own.shape == value.shape:
                    own.copy_(value)
                    continue
                path, _, leaf = name.rpartition(".")
                try:
                    self._module.get_submodule(path).register_buffer(leaf, value)
                except (AttributeError, KeyError):
                    raise InvalidArgumentError(
                        f"the module on the owner has a buffer {name!r}, which the local one cannot have"
                    ) from None


def _matching(module: nn.Module, infos: Sequence[ParameterInfo], expected: Sequence[torch.dtype]) -> list[nn.Parameter]:
    """The parameters of a local module in the owner's order. Those that are frozen on the owner are frozen here."""
    local = dict(module.named_parameters(remove_duplicate=False))
    found = []
    for info, dtype in zip(infos, expected, strict=True):
        parameter = local.get(info.name)
        described = None if parameter is None else (tuple(parameter.shape), parameter.dtype)
        if parameter is None or described != (tuple(info.shape), dtype):
            raise InvalidArgumentError(
                f"the module made here is not like the one on the owner: {info.name!r} has shape {tuple(info.shape)} "
                f"and {dtype} there, and {described or 'does not exist'} here"
            )
        if parameter.is_meta:
            raise InvalidArgumentError(
                f"{info.name!r} of the module made here is on the meta device, where values cannot be pulled to: make "
                "the replica outside of `with torch.device('meta')`, or from a function that calls `to_empty`"
            )
        parameter.requires_grad_(info.requires_grad)
        found.append(parameter)
    if len({id(each) for each in found}) != len(found):
        raise InvalidArgumentError("the module made here ties parameters that are apart on the owner")
    more = {id(each) for each in local.values()} - {id(each) for each in found}
    if more:
        names = [name for name, each in local.items() if id(each) in more]
        raise InvalidArgumentError(f"the module made here has parameters that the one on the owner lacks: {names}")
    return found


def _may_replace(parameter: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether a received tensor can be the data of a parameter: no program can tell the difference."""
    data = parameter.data
    return (
        data.is_cpu
        and data.dtype == value.dtype
        and data.stride() == value.stride()
        and data.untyped_storage().nbytes() == data.nbytes
        and not data.is_shared()
    )


def _links(module: nn.Module, parameters: Sequence[nn.Parameter]) -> list[_Link]:
    """The entries of modules that lead to parameters. Code that gives a module new ones, such as a parametrization or
    an assignment, would otherwise go unnoticed: the new ones get the gradients, and the old are pushed and pulled."""
    known = {id(each) for each in parameters}
    links: dict[tuple[int, str], _Link] = {}
    for path, found in module.named_parameters(remove_duplicate=False):
        if id(found) not in known:
            continue
        holder, (*parents, leaf) = module, path.split(".")
        for parent in parents:
            child = holder._modules[parent]
            assert child is not None
            links.setdefault((id(holder), parent), (holder._modules, parent, child, path))
            holder = child
        links[id(holder), leaf] = (holder._parameters, leaf, found, path)
    return list(links.values())


def _state(parameter: torch.Tensor) -> tuple[int, int, torch.dtype]:
    """What differs once a value has changed: its version, memory or dtype."""
    return parameter._version, parameter.data_ptr(), parameter.dtype
