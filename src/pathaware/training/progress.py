"""Progress of long work: training metrics between two log entries, and their display on standard error."""

from __future__ import annotations

import html
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from pathaware.core.writing import open_to_write
from pathaware.training.distributed import ALONE, World

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

Item = TypeVar("Item")


@dataclass(frozen=True)
class StepOutcome:
    """The result of one meta-iteration.

    `losses [T]` are those of this process's tasks, `norm` is the norm of the whole meta-gradient before
    clipping, and `skipped` is 1 if the meta-gradient was not finite and the step was left out.
    """

    losses: Tensor
    norm: Tensor
    skipped: Tensor


@dataclass(frozen=True)
class Progress:
    """Training metrics averaged since the previous log entry: a line of `metrics.jsonl`.

    `loss` is the meta-loss, `worst` the loss of the worst task, `norm` the norm of the meta-gradient before
    clipping, and `skipped` the number of meta-gradients that were not finite. `validation` is the metric on
    validation tasks, if this entry has one; `memory_mb` is the peak memory of a GPU so far.
    """

    iteration: int
    loss: float
    worst: float
    norm: float
    skipped: int
    rate: float
    seconds: float
    validation: float | None = None
    memory_mb: float | None = None


class MetricsWindow:
    """Collects the outcomes of iterations until the next log entry. Tensors stay on their device."""

    def __init__(self, seconds: float = 0.0, world: World = ALONE) -> None:
        self.world = world
        self.started = time.perf_counter() - seconds
        self.outcomes: list[StepOutcome] = []
        self.skipped_before = 0  # consecutive skipped steps at the end of the previous window

    @property
    def seconds(self) -> float:
        """Seconds of training, those before a resume included."""
        return time.perf_counter() - self.started

    def pending(self) -> dict[str, Tensor]:
        """Metrics accumulated since the last log entry, for checkpointing."""
        columns = {f.name: [getattr(o, f.name) for o in self.outcomes] for f in fields(StepOutcome)}
        stacked = {name: torch.stack(values) for name, values in columns.items() if values}
        return {**stacked, "earlier": torch.tensor(self.skipped_before)}

    def restore(self, pending: dict[str, Tensor], device: torch.device) -> None:
        """Continue from what `pending` returned."""
        self.skipped_before = int(pending["earlier"])
        columns = [pending[f.name].to(device) for f in fields(StepOutcome) if f.name in pending]
        self.outcomes = [StepOutcome(*row) for row in zip(*columns, strict=True)]

    def consecutive_skipped(self) -> int:
        """The number of most recent steps in a row that were skipped."""
        flags = torch.stack([o.skipped for o in self.outcomes]).flip(0)
        run = int(flags.cumprod(0).sum())
        return run + self.skipped_before if run == len(flags) else run

    def last_loss(self) -> float:
        """The mean loss of the last iteration, over the tasks of this process."""
        return float(self.outcomes[-1].losses.mean())

    def add(self, outcome: StepOutcome) -> None:
        # A replayed CUDA graph writes every outcome to the same tensors.
        self.outcomes.append(
            StepOutcome(outcome.losses.clone(), outcome.norm.clone(), outcome.skipped.clone())
        )

    def close(self, iteration: int, rate: float, validation: float | None) -> Progress:
        """Return the log entry of this window and begin a new one."""
        self.skipped_before = self.consecutive_skipped()
        losses = self.world.gather([torch.stack([o.losses for o in self.outcomes], dim=1)]).T
        norms = torch.stack([o.norm for o in self.outcomes]).to(losses.device)
        finite = (torch.stack([o.skipped for o in self.outcomes]) == 0).to(losses.device)
        on_gpu = self.outcomes[0].norm.is_cuda
        self.outcomes.clear()
        usable = bool(finite.any())
        return Progress(
            iteration=iteration,
            loss=float(losses[finite].mean()) if usable else math.nan,
            worst=float(losses[finite].max()) if usable else math.nan,
            norm=float(norms[finite].mean()) if usable else math.nan,
            skipped=int((~finite).sum()),
            rate=rate,
            seconds=self.seconds,
            validation=validation,
            memory_mb=torch.cuda.max_memory_allocated() / 1e6 if on_gpu else None,
        )


class EventFile:
    """Scalars for TensorBoard, written at once and without a thread, so that a full disk is an `OSError`."""

    def __init__(self, folder: Path, resumed_after: int | None = None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        # Entries of a run that resumes belong to a new file, which hides those after the saved state.
        name = f"events.out.tfevents.{time.time_ns() // 10**6}.{platform.node() or 'host'}.{os.getpid()}"
        self.records = RecordWriter(open_to_write(folder / name, folder))
        self._event = Event
        self._write(file_version="brain.Event:2")
        if resumed_after is not None:
            start = SessionLog(status=SessionLog.START)
            self._write(step=resumed_after + 1, session_log=start)

    def add(self, progress: Progress) -> None:
        """Add a log entry."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        numbers = {
            n: v for n, v in asdict(progress).items() if n not in ("iteration", "seconds") and v is not None
        }
        values = [Summary.Value(tag=f"train/{name}", simple_value=value) for name, value in numbers.items()]
        self._write(step=progress.iteration, summary=Summary(value=values))

    def _write(self, **content: Any) -> None:
        self.records.write(self._event(wall_time=time.time(), **content).SerializeToString())
        self.records.flush()

    def close(self) -> None:
        with suppress(OSError):  # of an entry that could not be written, which was an error already
            self.records.close()


REFRESH = 1.0
"""Seconds after which a display is brought up to date; reading a loss makes a GPU wait."""


class ProgressDisplay:
    """Shows how far work has come: a bar in a terminal or notebook, otherwise a line now and then.

    It goes to standard error, in a notebook to one output of the cell, which is rewritten. Lines are at least
    `interval` seconds apart; the last one is always printed. A `transient` bar disappears at the end.
    """

    def __init__(
        self,
        title: str,
        total: int | None = None,
        *,
        quiet: bool = False,
        bar: bool = True,
        transient: bool = False,
        interval: float = 10.0,
    ) -> None:
        self.title, self.total, self.quiet, self.interval = title, total, quiet, interval
        self.started = self.printed_at = self.shown_at = time.monotonic()
        self.bar = _bar(transient) if bar and not quiet else None
        self.task: Any = self.bar.add_task(title, total=total) if self.bar else None

    def __enter__(self) -> ProgressDisplay:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def update(self, done: int, detail: str, line: str, total: int | None = None) -> None:
        """Show that `done` of `total` is done: `detail` beside the title of a bar, else `line`."""
        self.total = self.total if total is None else total
        if self.bar and self.task is not None:
            description = f"{self.title} · {detail}" if detail else self.title
            self.bar.update(self.task, completed=done, total=self.total, description=description)
        elif not self.quiet and (done == self.total or time.monotonic() - self.printed_at >= self.interval):
            self.printed_at = time.monotonic()
            print(f"{self.title}: {line}", file=sys.stderr, flush=True)

    def show(self, iteration: int, loss: float, seconds: float) -> None:
        """Show that training has reached this iteration after so many seconds."""
        self.shown_at = time.monotonic()
        state = f"loss {loss:.4f}"
        left = ((self.total or 0) - iteration) * seconds / iteration
        line = f"{iteration}/{self.total}, {state}, {pace(iteration, seconds)}, {duration(left)} left"
        self.update(iteration, f"{state}  {pace(iteration, seconds)}", line)

    def count(self, done: int, total: int | None = None) -> None:
        """Show that `done` of `total` is done and how long the rest takes; no line at the end."""
        total = self.total or 0 if total is None else total
        left = (total - done) * (time.monotonic() - self.started) / max(done, 1)
        if self.bar or done < total:
            self.update(done, "", f"{done}/{total}, {duration(left)} left", total)

    @property
    def due(self) -> bool:
        """True if nothing has been shown for a second: slow runs are updated between log entries."""
        return not self.quiet and time.monotonic() - self.shown_at >= REFRESH

    def note(self, line: str) -> None:
        """Print a line above the bar of a terminal, otherwise to standard error."""
        if self.bar and not isinstance(self.bar, NotebookBar):
            self.bar.console.print(line, markup=False, highlight=False)
        elif not self.quiet:
            print(line, file=sys.stderr, flush=True)


def pace(iterations: int, seconds: float) -> str:
    """Iterations per second, or seconds per iteration if they are slower.

    >>> pace(500, 10.0), pace(25, 10.0), pace(2, 10.0)
    ('50 it/s', '2.5 it/s', '5.0 s/it')
    """
    speed = iterations / seconds
    if speed < 1:
        return f"{1 / speed:.1f} s/it"
    return f"{speed:.0f} it/s" if speed >= 10 else f"{speed:.1f} it/s"


def duration(seconds: float) -> str:
    """A length of time in words.

    >>> duration(40), duration(170), duration(8000)
    ('40 s', '3 min', '2 h 13 min')
    """
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


class NotebookBar:
    """A progress bar in a Jupyter notebook: one output, rewritten at most a few times per second."""

    INTERVAL = 0.2

    def __init__(self, transient: bool) -> None:
        self.transient = transient
        self.title, self.completed, self.total = "", 0, 0
        self.started = self.shown = time.monotonic()
        self.handle: Any = None

    def add_task(self, title: str, total: int | None) -> int:
        self.title, self.total = title, total or 0
        return 0

    def start(self) -> None:
        import IPython.display

        display: Any = IPython.display.display  # has no types
        self.handle = display(self._content(), raw=True, display_id=True)

    def update(self, task: int, *, completed: int, total: int | None, description: str) -> None:
        self.title, self.completed, self.total = description, completed, total or 0
        if completed == total or time.monotonic() - self.shown >= self.INTERVAL:
            self._show()

    def stop(self) -> None:
        if self.transient and self.handle:
            self.handle.update({"text/plain": ""}, raw=True)
        else:
            self._show()

    def _show(self) -> None:
        self.shown = time.monotonic()
        if self.handle:
            self.handle.update(self._content(), raw=True)

    def _content(self) -> dict[str, str]:
        seconds = time.monotonic() - self.started
        text = f"{self.title} · {self.completed}/{self.total} · {seconds:.0f} s"
        bar = f'<progress value="{self.completed}" max="{self.total}"></progress>'
        return {"text/plain": text, "text/html": f"{bar} {html.escape(text)}"}


def with_progress(
    items: Iterable[Item], total: int, title: str, *, least: int, size: Callable[[Item], int] = lambda _: 1
) -> Iterator[Item]:
    """Yield the items; on a terminal, show progress if `total` is at least `least`.

    `size` says how much of the total an item is.
    """
    display = ProgressDisplay(title, total, transient=True, quiet=total < least or not sys.stderr.isatty())
    done = 0
    with display:
        for item in items:
            yield item
            done += size(item)
            display.count(done)


def in_notebook() -> bool:
    """True in a Jupyter kernel, as opposed to a terminal, IPython's included."""
    ipython = sys.modules.get("IPython")
    return bool(ipython and getattr(ipython.get_ipython(), "kernel", None))


def _bar(transient: bool) -> Bar | NotebookBar | None:
    """A bar if there is something that shows it: a notebook, or a terminal as standard error."""
    if in_notebook():
        return NotebookBar(transient)
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if not console.is_terminal:
        return None
    title = TextColumn("{task.description}", markup=False)  # names may contain what rich takes for markup
    columns = (title, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Bar(*columns, console=console, transient=transient)
