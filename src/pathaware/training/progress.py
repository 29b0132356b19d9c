"""What a person sees while a run trains: a bar in a terminal, plain lines in a pipe or for several runs."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from pathaware.training.trainer import Progress


class Display:
    """Follows one run on standard error, which leaves standard output to results."""

    def __init__(
        self, title: str, iterations: int, *, quiet: bool = False, bar: bool = True, interval: float = 10.0
    ) -> None:
        self.title = title
        self.iterations = iterations
        self.quiet = quiet
        self.interval = interval
        self.spoke = time.monotonic()
        self.bar: Bar | None = None
        if bar and not quiet and sys.stderr.isatty():
            self.bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("loss {task.fields[loss]:.4f}  {task.fields[speed]:.0f} it/s"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self.task = self.bar.add_task(title, total=iterations, loss=float("nan"), speed=0.0)

    def __enter__(self) -> Display:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar:
            self.bar.stop()

    def show(self, progress: Progress) -> None:
        speed = progress.iteration / progress.seconds
        if self.bar:
            self.bar.update(self.task, completed=progress.iteration, loss=progress.loss, speed=speed)
        elif not self.quiet and self._due(progress):
            left = (self.iterations - progress.iteration) / speed
            print(
                f"{self.title}: {progress.iteration}/{self.iterations}, loss {progress.loss:.4f}, "
                f"{speed:.0f} it/s, {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    def _due(self, progress: Progress) -> bool:
        """A pipe hears of a run now and then, and of its end."""
        now = time.monotonic()
        if now - self.spoke < self.interval and progress.iteration < self.iterations:
            return False
        self.spoke = now
        return True
