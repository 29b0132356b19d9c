"""Whether a file can be written: asked before minutes of work, not after them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pathaware.errors import UsageError


def must_be_writable(option: str, path: Path) -> None:
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"{option}: {path} cannot be written")


def must_be_new(option: str, path: Path, replace: bool) -> None:
    """A file that can be written, and is not there unless it may be replaced."""
    must_be_writable(option, path)
    if path.exists() and not replace:
        raise UsageError(f"{option}: {path} is already there; --replace writes over it")


def must_have_room(option: str, folder: Path, names: Sequence[str]) -> None:
    """Make the folder if need be; what is in it by these names is left alone."""
    for name in names:
        if (folder / name).exists():
            raise UsageError(f"{option}: {folder / name} is there already; name another folder or remove it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # the latter of a name that no system allows
        raise UsageError(f"{option}: {folder} cannot be made ({error})") from None
    must_be_writable(option, folder / names[0])
