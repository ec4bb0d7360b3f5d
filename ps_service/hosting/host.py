"""The parts of an owner that its objects need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from ps_service.hosting.allowlist import AllowList
    from ps_service.hosting.registry import Registry
    from ps_service.parameters.locks import ParameterLocks


class Host(Protocol):
    """The owner of objects; see `Engine`. Hosted modules live on the `device`."""

    @property
    def name(self) -> str: ...

    @property
    def allowlist(self) -> AllowList: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def registry(self) -> Registry: ...

    @property
    def parameter_locks(self) -> ParameterLocks: ...
