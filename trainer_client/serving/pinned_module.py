"""A module as it was when a snapshot was made."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch

from trainer_client.handles.following import ModuleChange
from trainer_client.pending import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer_client.handles.handles import RemoteObject
    from trainer_client.pending import Pending


class PinnedModule:
    """A copy of a module, in evaluation mode, as it was when a snapshot was made: `snapshot[net]`.

    Attributes:
        name: The name of the module.
        class_name: The name of its class on the owner.
        owner: The name of its owner.
    """

    def __init__(self, name: str, part: RemoteObject, class_name: str) -> None:
        self.name: Final = name
        self.class_name: Final = class_name
        self.owner: Final = part.owner
        self._part: Final = part
        self._was_followed = False

    def read(self, *args: Any, timeout: float | None = DEFAULT, **kwargs: Any) -> Pending[Any]:
        """Calls the module as it was, without gradients, and beside any context.

        Args:
            args: Arguments of `forward`, and so are the other `kwargs`.
            timeout: Seconds that the call may take; None is no limit.

        Raises:
            StaleHandleError: The snapshot was removed, or the owner was started again.
            RemoteError: The module raised an exception.
        """
        with torch.no_grad():
            return self._part.options(timeout=timeout, seed=0).call("read", *args, **kwargs)

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a module of a snapshot is not trained, and so not called: read(…) gives what it returns")

    def state_dict(self) -> Pending[dict[str, Any]]:
        """Copies of its parameters and buffers, by name."""
        with torch.no_grad():
            return self._part.options(seed=0).call("state")

    def for_reading(self, timeout: float | None = DEFAULT) -> Callable[..., Pending[Any]]:
        """What a reader calls: see `RemoteModule.for_reading`."""
        return partial(self.read, timeout=timeout)

    def following(self, since: Any, every: float) -> PinnedModule:
        """What an export reads: see `RemoteModule.following`."""
        return self

    async def round(self) -> ModuleChange | None:
        """All of it, the first time: it does not change."""
        if self._was_followed:
            return None
        state = await self.state_dict()
        self._was_followed = True
        return ModuleChange({}, {name: each for name, each in state.items() if isinstance(each, torch.Tensor)}, {})

    def __repr__(self) -> str:
        return f"<PinnedModule {self.name!r}, {self.class_name}, on {self.owner}>"
