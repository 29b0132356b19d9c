"""Ready configurations: the rows of the paper's Tables 1 and 2, as small TOML files beside this one."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pathaware.errors import UsageError

FOLDER = Path(__file__).parent


def presets() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_preset(name: str) -> dict[str, dict[str, Any]]:
    """The tables of a preset, or of any TOML file by its path."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise UsageError(f"preset: {name!r} is none of {', '.join(presets())}, nor a file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"preset: {path} is no TOML ({error})") from None
