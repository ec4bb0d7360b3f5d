"""Watch: sees every operation of torch that its thread runs, while it is entered."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode


class Watch(TorchDispatchMode):
    """A dispatch mode for many threads.

    What torch's own does beside pushing itself belongs to the process: flags that tell its compiler of modes, which
    threads that enter and leave side by side would leave in disorder. And its first use would import the compiler.
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
