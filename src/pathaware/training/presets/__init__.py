"""Ready configurations: the rows of the paper's Tables 1 and 2, as small TOML files beside this one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pathaware.core.errors import UsageError
from pathaware.training.config import read_toml

FOLDER = Path(__file__).parent


def presets() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_preset(name: str) -> dict[str, dict[str, Any]]:
    """The tables of a preset, or of any TOML file by its path."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise UsageError(f"preset: {path} is no TOML ({error})") from None
        raise UsageError(f"preset: {name!r} is none of {', '.join(presets())}, nor a file") from None
    try:
        return read_toml(text)
    except UsageError as error:
        raise UsageError(f"preset: {path}: {error}") from None
