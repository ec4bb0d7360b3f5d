"""Devices of the members of a group, in torch's words.

A member has one device: its modules and the arguments of calls to it are there. Tensors travel through the memory of
the host. So a device map can only name the device of each side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ps_wire.errors import InvalidArgumentError

Device = str | int | torch.device
"""A device as torch takes it; a number is one of CUDA's."""


class DeviceMaps:
    """The device of this process that maps and `devices` name, if any, and those of the members that it has maps for.

    Raises `InvalidArgumentError` if a map has more than one device, or two name different devices of this process.
    """

    def __init__(self, maps: Mapping[str, Mapping[Device, Device]] | None, devices: Sequence[Device] | None) -> None:
        self.there: dict[str, torch.device] = {}
        named = [_device(each) for each in devices or ()]
        for member, pairs in (maps or {}).items():
            if len(pairs) != 1:
                raise InvalidArgumentError(
                    f"the device map of {member!r} has {len(pairs)} devices; every process has one device here, so a "
                    "map has one pair: {'cuda:0': 'cuda:0'}"
                )
            [(here, there)] = pairs.items()
            named.append(_device(here))
            self.there[member] = _device(there)
        if len(set(named)) > 1:
            listed = ", ".join(sorted(str(each) for each in set(named)))
            raise InvalidArgumentError(
                f"the device maps and devices name {listed} for this process; every process has one device here: "
                "start one process for each"
            )
        self.here = named[0] if named else None

    def check(self, member: str, device: str) -> None:
        """Raises `InvalidArgumentError` if a member says that it has another device than the one of its map."""
        if member in self.there:
            check_device(member, device, self.there[member])

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of a result, on the device of this process if there are device maps; otherwise as it came."""
        return tensor.to(self.here) if self.there and self.here is not None else tensor


def usable(device: str | torch.device) -> torch.device:
    """A device of this machine. Raises `InvalidArgumentError` if there is no such device."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ModuleNotFoundError) as error:
        raise InvalidArgumentError(f"this machine has no device {str(device)!r}: {error}") from error
    return torch.device(device)


def check_device(member: str, device: str, wanted: torch.device) -> None:
    """Raises `InvalidArgumentError` if a member has another device than wanted; without a number, any of its kind."""
    has = torch.device(device)
    if has.type != wanted.type or (None not in (has.index, wanted.index) and has.index != wanted.index):
        raise InvalidArgumentError(
            f"{member!r} hosts on {has}, not on {wanted}: it has to give init_rpc(device={str(wanted)!r}), or the "
            "devices of TensorPipeRpcBackendOptions"
        )


def _device(named: Device) -> torch.device:
    # torch.device(0) fails where there is no accelerator.
    return torch.device("cuda", named) if isinstance(named, int) else torch.device(named)
