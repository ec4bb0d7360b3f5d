"""Writes the numbers of steps for TensorBoard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pathlib import Path

    from trainer_client.reporting.progress import StepNumbers


class TensorBoard:
    """Writes the numbers of every step, as a callback of `progress`.

        with tc.TensorBoard("runs/first") as board:
            bar = tc.progress(batches, callbacks=[board])

    The values have their own names, such as `loss`. `steps_per_second`, `staleness` and `dropped` stand in the group
    `parameter_server`.

    Args:
        folder: The folder of the run. Each trainer needs its own.
        every: Writes every so many steps. Reading a value waits for the GPU that it is on.

    Attributes:
        writer: The `torch.utils.tensorboard.SummaryWriter`, for whatever else is to be written.

    Raises:
        ModuleNotFoundError: TensorBoard is not installed.
    """

    def __init__(self, folder: str | Path, every: int = 1) -> None:
        try:
            # Not at the top: it is not part of what this package needs.
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ModuleNotFoundError("TensorBoard is not installed: pip install tensorboard") from error
        self.writer: Any = SummaryWriter(str(folder))
        self._every = max(every, 1)

    def __call__(self, numbers: StepNumbers) -> None:
        """Writes the numbers of a step."""
        if numbers.step % self._every:
            return
        own = {"steps_per_second": numbers.steps_per_second, "dropped": numbers.dropped, "staleness": numbers.staleness}
        for name, value in own.items():
            if value is not None:
                self.writer.add_scalar(f"parameter_server/{name}", value, numbers.step)
        for name, value in numbers.values.items():
            self.writer.add_scalar(name, float(value), numbers.step)

    def close(self) -> None:
        """Writes what is left, and closes the file."""
        self.writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
