"""Whether a file can be written: asked before minutes of work, not after them."""

from __future__ import annotations

import os
from pathlib import Path

from pathaware.errors import UsageError


def must_be_writable(option: str, path: Path) -> None:
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"{option}: {path} cannot be written")
