"""The one place that opens files which somebody else may have written: plain ones, of limited size."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

from pathaware.core.errors import UsageError
from pathaware.core.schema import read

MOST_TEXT, MOST_TENSORS = 2**28, 2**33
"""Bytes of a file of text, and of one with tensors."""


def read_file(path: Path, limit: int = MOST_TEXT) -> bytes:
    """The bytes of a plain file; an `OSError` that names it if it is another or has more than `limit`."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(descriptor, "rb") as file:
        _check(path, os.fstat(descriptor), limit)
        return file.read(limit)


def must_be_plain(path: Path, limit: int = MOST_TENSORS) -> None:
    """Raise an `OSError` that names a file unless it is a plain one of at most `limit` bytes."""
    _check(path, path.stat(), limit)


def _check(path: Path, status: os.stat_result, limit: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    if status.st_size > limit:
        raise OSError(errno.EFBIG, f"more than the {limit:,} bytes allowed", str(path))


def read_json(path: Path, hint: Any, field: str = "run") -> Any:
    """The content of a JSON file of a declared type; the error names the file and what is allowed."""
    try:
        found = json.loads(read_file(path))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})", field) from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is damaged (not JSON)", field) from None
    try:
        return read(path.stem, found, hint)
    except UsageError as error:
        raise UsageError(f"{path} is damaged ({error.message})", field) from None
