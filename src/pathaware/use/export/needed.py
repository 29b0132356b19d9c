"""Packages that only one format needs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pathaware.errors import UsageError


def needed(format: str, package: str) -> Any:
    """The package, or a line that says how to get it."""
    try:
        return import_module(package)
    except ImportError:
        raise UsageError(
            f"--to {format}: needs {package}, which is not installed; pip install 'pathaware[{format}]'"
        ) from None
