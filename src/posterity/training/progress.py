"""What a fit shows: a bar on a terminal, a plain line an epoch elsewhere, TensorBoard scalars if asked for."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

from posterity.run import Run
from posterity.training.config import Training
from posterity.types import PosterityError

__all__ = ["Progress", "TensorBoard"]


class Progress:
    """A callback that shows loss, accuracy and time left.

    Args:
        training: Whether to show anything.
        total: Epochs of the run.
        title: What stands in front, such as the method's name.
    """

    def __init__(self, training: Training, total: float, title: str) -> None:
        terminal = sys.stderr.isatty()
        self.bar: Any = None
        self.lines = training.progress is True and not terminal
        self.total, self.title, self.start = total, title, time.monotonic()
        if terminal and training.progress is not False:
            self.bar = _rich_bar()

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
            self.task = self.bar.add_task(self.title, total=self.total, figures="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def on_epoch(self, run: Run, figures: dict[str, float]) -> None:
        """Show an epoch's figures."""
        done = run.step / run.plan.steps_per_epoch
        text = " ".join(f"{name} {value:.4g}" for name, value in figures.items() if name != "epoch")
        if self.bar is not None:
            self.bar.update(self.task, completed=done, figures=text)
        elif self.lines and (run.step == run.plan.steps or int(done) % max(1, round(self.total / 20)) == 0):
            left = (time.monotonic() - self.start) / done * (self.total - done)
            epochs = f"epoch {round(done, 2):g}/{round(self.total, 2):g}"
            print(f"{self.title}: {epochs} {text} ({left:.0f} s left)", file=sys.stderr)


class TensorBoard:
    """A callback that writes every figure as a scalar."""

    def __init__(self, folder: str) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise PosterityError("tensorboard scalars need the tensorboard package: pip install tensorboard") from error
        self.writer = SummaryWriter(folder)

    def on_epoch(self, run: Run, figures: dict[str, float]) -> None:
        """Write an epoch's figures."""
        for name, value in figures.items():
            self.writer.add_scalar(name, value, run.step)
        self.writer.flush()


def _rich_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.table import Column
    from rich.text import Text

    class Figures(ProgressColumn):
        """Cut off where the line ends: in a column that never wraps, they would cut off the bar and the time."""

        def render(self, task: Task) -> Text:
            return Text(task.fields["figures"], no_wrap=True, overflow="ellipsis")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TimeRemainingColumn(),
        Figures(table_column=Column(no_wrap=False)),
    )
    return Progress(*columns, console=Console(stderr=True))
