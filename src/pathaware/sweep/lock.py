"""One sweep at a time in a folder: two would train the same runs over each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pathaware.training.lock import FolderLock


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    lock = FolderLock(folder, f"--out: another sweep is at work in {folder}")
    try:
        yield
    finally:
        lock.release()
