"""Configuration files as tables, before anybody looks at what they say."""

from __future__ import annotations

import datetime
import tomllib
from pathlib import Path
from typing import Any

from pathaware.errors import UsageError


def read_toml(text: str) -> dict[str, Any]:
    """The tables of a file. TOML has no null, so a setting that is off says "none"."""
    try:
        tables: dict[str, Any] = _plain(tomllib.loads(text))
    except RecursionError:
        raise UsageError("it is nested too deeply to be read") from None
    except ValueError as error:
        raise UsageError(f"it is no TOML ({error})") from None
    return tables


def read_toml_file(option: str, path: Path) -> dict[str, Any]:
    """The same of a file; `option` names it in what is said of one that cannot be used."""
    try:
        return read_toml(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{option}: {path} cannot be read ({error.strerror})") from None
    except ValueError as error:  # also a path or a text that is none
        raise UsageError(f"{option}: {path}: {error}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:  # Python reads longer ones, nobody else does
        raise ValueError("an integer of more than 64 bits")
    if isinstance(value, (datetime.date, datetime.time)):
        raise ValueError(f"{value} is a date or a time, and no setting is")
    return None if value == "none" else value
