"""Options of `init_rpc` under the names of torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from ps_wire.errors import InvalidArgumentError

UNSET: Final = -1.0
"""A timeout that was not given: the default of this process applies."""

DEFAULT_TIMEOUT: Final = 60.0
"""The default of the default timeout, in seconds."""


@dataclass
class RpcBackendOptions:
    """Options by their names in torch.

    Attributes:
        rpc_timeout: Default timeout of calls, in seconds; 0 is no limit.
        init_method: Address of rank 0, which keeps the directory, as `tcp://host:port`.
        num_worker_threads: Number of compute threads of this process; 0 chooses by the number of cores.
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
    """Like `RpcBackendOptions`, under the name that torch has for them."""


def master_address(init_method: str) -> str:
    """Host and port from an `init_method`, or from the environment.

    Raises:
        InvalidArgumentError: It is malformed, or `MASTER_ADDR` or `MASTER_PORT` is missing.
    """
    url = urlsplit(init_method)
    if url.scheme == "tcp" and url.hostname and url.port:
        return f"{url.hostname}:{url.port}"
    if url.scheme != "env":
        raise InvalidArgumentError(f"init_method must be tcp://host:port or env://, not {init_method!r}")
    try:
        host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    except KeyError as missing:
        raise InvalidArgumentError(
            f"{missing.args[0]} is not set: set it to the address of rank 0, or give init_rpc(directory='host:port')"
        ) from None
    return f"{host}:{port}"
