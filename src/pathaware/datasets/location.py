"""Where packed data sets live."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pathaware.errors import UsageError


def data_dir(chosen: Path | None = None) -> Path:
    """`chosen`, or `$PATHAWARE_DATA`, or `pathaware` in the XDG data home."""
    if chosen is not None:
        return chosen
    if named := os.environ.get("PATHAWARE_DATA"):
        return Path(named).expanduser()
    home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(home).expanduser() / "pathaware"


def store_folder(name: str, chosen: Path | None = None) -> Path:
    # The name becomes a folder name; a leading dot is kept for imports under way.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UsageError(
            f"data set name {name!r}: must begin with a letter or digit and hold only those, '.', '_' and '-'"
        )
    return data_dir(chosen) / name
