"""A dispatch mode that sees every torch operation its thread runs, and is safe in many threads."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode


class Watch(TorchDispatchMode):
    """A `TorchDispatchMode` that only pushes and pops itself.

    Torch's own mode also sets process-wide flags that tell the compiler about modes. Threads that enter and leave at
    the same time would leave these flags wrong. Its first use would also import the compiler.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __enter__(self) -> Self:
        _push_mode(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _pop_mode()
