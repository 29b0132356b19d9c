"""One run of a sweep: what it varies, and the configuration that makes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from pathaware.training.config import Config

SEED = "training.seed"
_LONGEST = 200  # file systems end at 255 bytes, and records and logs add their endings


@dataclass(frozen=True)
class Point:
    """`settings` are those that the sweep varies, as `"training.rate"`; `name` is for folders and files."""

    name: str
    settings: Mapping[str, Any]
    config: Config


def shown(value: Any) -> str:
    """As the configuration file has it, without quotes."""
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)


def brief(value: Any) -> str:
    """The same for a table: of a number that a search drew, nobody reads the last digits."""
    text = shown(value)
    return f"{value:.4g}" if isinstance(value, float) and len(text) > 10 else text


def short(names: list[str]) -> dict[str, str]:
    """What settings are called where there is little room: their last word, unless two of them share it."""
    words = {name: "method" if name == "method.name" else name.partition(".")[2] for name in names}
    return {name: word if list(words.values()).count(word) == 1 else name for name, word in words.items()}


def folder_name(settings: Mapping[str, Any]) -> str:
    """`method=pamela,rate=0.001,seed=0`: different for different settings, whatever their values hold."""
    words = short(list(settings))
    name = ",".join(f"{words[key]}={quote(shown(value), safe='')}" for key, value in settings.items())
    if len(name) <= _LONGEST:
        return name
    return f"{name[:_LONGEST]},{hashlib.sha256(name.encode()).hexdigest()[:8]}"
