"""One sweep at a time in a folder: two would train the same runs over each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from pathaware.errors import UsageError


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The lock goes with the process that holds it, however that ends."""
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        raise UsageError(f"--out: another sweep is at work in {folder}") from None
