"""Models that come with the package, by name."""

from __future__ import annotations

from pathlib import Path

SHIPPED = Path(__file__).parent.parent / "shipped"


def shipped() -> list[str]:
    return sorted(path.parent.name for path in SHIPPED.glob("*/config.toml"))


def find_run(run: str | Path) -> Path:
    """The folder of a run; a name that is no folder here may be that of a shipped model."""
    folder = Path(run)
    if not folder.exists() and str(run) in shipped():
        return SHIPPED / str(run)
    return folder
