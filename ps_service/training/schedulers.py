"""Learning-rate schedulers that run where their optimizer is."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ps_service.training.copies import copied
from ps_wire.decorators import remote
from ps_wire.errors import InvalidArgumentError
from ps_wire.shown import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.optim import lr_scheduler

    from ps_service.training.optimizers import HostedOptimizer


class HostedScheduler:
    """A scheduler of `torch.optim.lr_scheduler` for a hosted optimizer. It `is_named` if those for the parts of the
    optimizer on other owners have the same name."""

    is_named = False

    def __init__(
        self, cls: type[lr_scheduler.LRScheduler], hosted: HostedOptimizer, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        self.hosted = hosted
        with hosted.lock:
            self.scheduler = cls(hosted.optimizer, *args, **kwargs)

    @remote
    def step(self, *args: Any) -> list[Any]:
        """Steps the scheduler; returns the learning rates, one per parameter group."""
        with self.hosted.lock:
            # Torch warns if the optimizer has not stepped; this owner's part of it may have had no gradients yet.
            self.scheduler.optimizer._opt_called = True  # type: ignore[attr-defined]
            self.scheduler.step(*args)
            return self._rates()

    @remote
    def get_last_lr(self) -> list[Any]:
        """The learning rates now, one per parameter group."""
        with self.hosted.lock:
            return self._rates()

    def state_dict(self) -> dict[str, Any]:
        with self.hosted.lock:
            state: dict[str, Any] = copied(self.scheduler.state_dict())
            return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads a state, entirely or not at all. Raises `InvalidArgumentError` if it is that of another class."""
        with self.hosted.lock:
            # Torch would overwrite any attribute of the scheduler that the state names.
            known = self.scheduler.state_dict()
            if known.keys() != state.keys():
                raise InvalidArgumentError(f"a state of this scheduler has {sorted(known)}, not {sorted(state)}")
            for key, value in state.items():
                if not _is_like(value, known[key]):
                    raise InvalidArgumentError(f"{key!r} of a scheduler's state cannot be {shown(value)}")
            # A Counter, as in MultiStepLR, is sent as a dict.
            self.scheduler.load_state_dict(
                {key: Counter(value) if isinstance(known[key], Counter) else value for key, value in state.items()}
            )

    def _rates(self) -> list[Any]:
        return [group["lr"] for group in self.hosted.optimizer.param_groups]


def _is_like(value: Any, example: Any) -> bool:
    """Whether a value has the type of an example (numbers of any type match, and sequences whose items match)."""
    if example is None:
        return True
    if isinstance(example, (list, tuple)):
        alike = isinstance(value, (list, tuple)) and len(value) == len(example)
        return alike and all(map(_is_like, value, example))
    if isinstance(example, (int, float)) and not isinstance(example, bool):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, dict) if isinstance(example, dict) else type(value) is type(example)
