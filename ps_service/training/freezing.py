"""Freezes and unfreezes hosted parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from ps_service.hosting.host import Host
    from ps_service.hosting.objects import HostedObject
    from ps_wire.refs import Ref


def set_requires_grad(engine: Host, targets: Sequence[Ref], requires_grad: bool) -> None:
    """Freezes or unfreezes parameters, or all those of modules: all of them, or none if one cannot be changed. Calls
    that begin later see that. Raises if one is not here, and `InvalidArgumentError` if a target is no module, or a
    parameter holds integers."""
    parameters = [parameter for ref in targets for parameter in _parameters(engine.registry.find(ref), ref)]
    for parameter in parameters:
        if requires_grad and not (parameter.is_floating_point() or parameter.is_complex()):
            raise InvalidArgumentError(f"a parameter of {parameter.dtype} cannot be trained; nothing was changed")
    engine.parameter_locks.set_requires_grad(parameters, requires_grad)


def _parameters(hosted: HostedObject, ref: Ref) -> Iterator[torch.Tensor]:
    if ref.parameter or isinstance(hosted.value, nn.Parameter):
        yield hosted.parameter(ref.parameter)
    elif isinstance(hosted.value, nn.Module):
        yield from hosted.parameters.values()
    else:
        raise InvalidArgumentError(f"{hosted} has no parameters")
