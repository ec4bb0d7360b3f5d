"""Options of `init_rpc` under the names of torch, and the devices that they name.

A member has one device, where its modules and the arguments of calls are. So a device map names that of each side.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import torch

from ps_wire.arguments import check_text
from ps_wire.errors import InvalidArgumentError
from ps_wire.numbers import check_seconds, check_whole
from ps_wire.shown import shown

UNSET: Final = -1.0
"""A timeout that was not given: the default of this process applies."""

DEFAULT_TIMEOUT: Final = 60.0
"""The default of the default timeout, in seconds."""

_MOST_THREADS: Final = 4096
"""Most compute threads of a process."""

Device = str | int | torch.device
"""A device as torch takes it; a number is one of CUDA's."""


@dataclass
class RpcBackendOptions:
    """Options by their names in torch.

    Attributes:
        rpc_timeout: Default timeout of calls, in seconds; 0 is no limit.
        init_method: Address of rank 0, which keeps the directory, as `tcp://host:port`; or `file:///path`, for a group
            that begins through a file, `path.rpc`, which all members can read and write.
        num_worker_threads: Number of compute threads of this process; 0 chooses by the number of cores.
        device_maps: By the name of a member: the device of this process, and the member's, as
            `{"ps0": {"cuda:0": "cuda:0"}}`. Every process has one device. With maps, tensors of results arrive on the
            device of this process, and otherwise on the CPU.
        devices: The device of this process, as a list of one.

    Raises:
        InvalidArgumentError: A device map has several devices, or two name different devices of this process; or
            another option is of a wrong type.
    """

    rpc_timeout: float = DEFAULT_TIMEOUT
    init_method: str = "env://"
    num_worker_threads: int = 0
    device_maps: Mapping[str, Mapping[Device, Device]] | None = None
    devices: Sequence[Device] | None = None

    def __post_init__(self) -> None:
        check_text("init_method", self.init_method)
        check_whole("num_worker_threads", self.num_worker_threads, 0, _MOST_THREADS)
        self.placement()
        if not isinstance(self.rpc_timeout, (int, float)):
            raise TypeError(
                "incompatible constructor arguments: rpc_timeout is a number of seconds, not a "
                f"{type(self.rpc_timeout).__name__}"
            )
        check_seconds("rpc_timeout", self.rpc_timeout)

    def placement(self) -> DeviceMaps:
        """The device maps and devices, checked."""
        return DeviceMaps(self.device_maps, self.devices)

    def set_device_map(self, to: str, device_map: Mapping[Device, Device]) -> None:
        """Sets the device map of a member, in addition to those of others.

        Raises:
            InvalidArgumentError: It has several devices, or another device of this process than the other maps.
        """
        maps = {**(self.device_maps or {}), to: device_map}
        DeviceMaps(maps, self.devices)
        self.device_maps = maps

    def set_devices(self, devices: Sequence[Device]) -> None:
        """Sets the device of this process, as a list of one.

        Raises:
            InvalidArgumentError: There are several, or the device maps name another.
        """
        DeviceMaps(self.device_maps, devices)
        self.devices = devices


class TensorPipeRpcBackendOptions(RpcBackendOptions):
    """Like `RpcBackendOptions`, under the name that torch has for them."""


class BackendType(enum.Enum):
    """The backends of torch by name. There is one backend here, whatever the name."""

    TENSORPIPE = "TENSORPIPE"


def checked_options(backend: Any, options: RpcBackendOptions | None) -> RpcBackendOptions:
    """The options that `init_rpc` was given, or the defaults; `TypeError` if these or the backend are none."""
    if backend is not None and not isinstance(backend, enum.Enum):
        raise TypeError(f"Argument backend must be a member of BackendType, not a {type(backend).__name__}")
    if options is None:
        return RpcBackendOptions()
    if not isinstance(options, RpcBackendOptions):
        raise TypeError(
            f"Argument rpc_backend_options must be an instance of RpcBackendOptions, not a {type(options).__name__}"
        )
    if backend is not None and not isinstance(options, TensorPipeRpcBackendOptions):
        raise TypeError(
            "`rpc_backend_options` must be a `TensorPipeRpcBackendOptions` for that backend, not a "
            f"{type(options).__name__}"
        )
    return options


def master_address(init_method: str) -> str:
    """Host and port from an `init_method`, or from the environment."""
    url = urlsplit(init_method)
    if url.scheme == "tcp" and url.hostname and url.port:
        return f"{url.hostname}:{url.port}"
    if url.scheme != "env":
        raise InvalidArgumentError(f"init_method must be tcp://host:port, file:///path or env://, not {init_method!r}")
    try:
        host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    except KeyError as missing:
        raise InvalidArgumentError(
            f"{missing.args[0]} is not set: set it to the address of rank 0, or give init_rpc(directory='host:port')"
        ) from None
    if not port.isdecimal() or int(port) >= 1 << 16:
        raise InvalidArgumentError(f"MASTER_PORT is the port of rank 0, a number up to 65535, and not {port!r}")
    return f"{host}:{port}"


class DeviceMaps:
    """The devices that maps and `devices` name, of this process and of members; raises as `RpcBackendOptions`."""

    def __init__(self, maps: Mapping[str, Mapping[Device, Device]] | None, devices: Sequence[Device] | None) -> None:
        self.there: dict[str, torch.device] = {}
        named = [_device(each) for each in devices or ()]
        if maps is not None and not (
            isinstance(maps, Mapping) and all(isinstance(each, Mapping) for each in maps.values())
        ):
            raise InvalidArgumentError(
                f"device_maps has a map for each member, as {{'ps0': {{'cuda:0': 'cuda:0'}}}}, and is not {shown(maps)}"
            )
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
