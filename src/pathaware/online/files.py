"""What a race leaves in a folder: its record and its picture."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pathaware.report.environment import environment
from pathaware.report.record import commit


def origin() -> dict[str, Any]:
    """Of what runs; asked before it runs, while the code on the disk is the same."""
    return {"commit": commit(), "environment": environment()}


def write(record: Mapping[str, Any], folder: Path, stem: str) -> list[Path]:
    from pathaware.online.figure import draw
    from pathaware.report.style import save

    text = json.dumps(record, indent=1)
    text = re.sub(r"\[[^][{}]*\]", lambda found: " ".join(found.group().split()), text)  # numbers on one line
    path = folder / f"{stem}.json"
    path.write_text(text + "\n", encoding="utf-8")
    return [path, *(save(draw(record), folder / f"{stem}.{ending}") for ending in ("png", "svg"))]
