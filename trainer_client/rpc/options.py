"""Options: what `init_rpc` can be told under the names of torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from ps_wire.errors import InvalidArgumentError

UNSET: Final = -1.0
"""A time-out that was not given: the default of the group's member holds."""

DEFAULT_TIMEOUT: Final = 60.0
"""Seconds a call may take when neither it nor `init_rpc` says anything."""


@dataclass
class RpcBackendOptions:
    """Options by their names in torch.

    Attributes:
        rpc_timeout: Seconds a call may take by default; 0 for as long as it takes.
        init_method: Where number 0 keeps the directory, as `tcp://host:port`.
        num_worker_threads: Threads in which the owner here runs what is called; 0 chooses by the number of cores.
        device_maps: Not supported: tensors arrive on the device of the owner. Must be empty.
        devices: Not supported; see `device_maps`.

    Raises:
        InvalidArgumentError: A device map was given.
    """

    rpc_timeout: float = DEFAULT_TIMEOUT
    init_method: str = "env://"
    num_worker_threads: int = 0
    device_maps: Any = None
    devices: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        if self.device_maps or self.devices:
            raise InvalidArgumentError(
                "device_maps are not supported: tensors travel through the memory of the host, and arrive on the "
                "device of the owner; give init_rpc(device=...)"
            )
        if not isinstance(self.rpc_timeout, (int, float)):
            raise TypeError(f"rpc_timeout is a number of seconds, not a {type(self.rpc_timeout).__name__}")


class TensorPipeRpcBackendOptions(RpcBackendOptions):
    """The same, for programs that name torch's backend."""


def master_address(init_method: str) -> str:
    """Host and port that an `init_method` names, or that stand in the environment.

    Raises:
        InvalidArgumentError: It cannot be read, or `MASTER_ADDR` or `MASTER_PORT` is missing.
    """
    url = urlsplit(init_method)
    if url.scheme == "tcp" and url.hostname and url.port:
        return f"{url.hostname}:{url.port}"
    if url.scheme != "env":
        raise InvalidArgumentError(f"init_method is tcp://host:port or env://, not {init_method!r}")
    try:
        host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    except KeyError as missing:
        raise InvalidArgumentError(
            f"{missing.args[0]} is not set: it says where number 0 listens; or give init_rpc(directory='host:port')"
        ) from None
    return f"{host}:{port}"
