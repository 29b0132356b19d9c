"""How an import shows that it is alive: a bar on a terminal, a line now and then in a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pathaware.datasets.importing import Progress as Report

_LINES = 10


@contextmanager
def shown_progress(name: str) -> Iterator[Report]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _plain(name, console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total, class_name: bar.update(
            task, completed=done, total=total, description=f"{name} · {class_name}"
        )


def _plain(name: str, console: Console) -> Report:
    told = 0

    def report(done: int, total: int, class_name: str) -> None:
        nonlocal told
        tenth = _LINES * done // max(total, 1)
        if tenth > told:
            told = tenth
            console.print(f"{name}: {done:,} of {total:,} images", highlight=False)

    return report
